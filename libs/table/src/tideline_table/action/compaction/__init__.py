"""Compaction: merge the log files of a slice into its next base file."""
