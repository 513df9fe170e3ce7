"""Lease service: API, expiry watch, lock events."""
