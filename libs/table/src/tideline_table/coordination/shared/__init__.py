"""Tables that Apache Hudi writes, too: its lock, its rules, and the adoption of its steps from the timeline."""
