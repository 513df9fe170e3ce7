"""Event contract and event-log port with SQLite and Kafka adapters."""
