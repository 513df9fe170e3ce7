"""Log compaction: merge the log files of a slice into one log file, without its base file."""
