"""The metadata table of Apache Hudi's readers: created, checked and repaired."""
