"""Clustering: rewrite small files of a partition into fewer, sorted files."""
