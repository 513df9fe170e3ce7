"""Indexes of Apache Hudi's readers that Tideline keeps: the metadata table."""
