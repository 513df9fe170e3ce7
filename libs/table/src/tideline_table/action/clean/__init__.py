"""Cleaning: delete file slices that no retained query reads."""
