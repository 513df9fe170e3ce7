"""`tideline-changes`: publishes the changed rows of chosen tables, one topic per table, in Debezium's envelope.

In order of the table's log and once each. Its positions are records of the event log, published with the rows that they count; what
the log or the files no longer have is published as a truncation and a new snapshot.
"""
