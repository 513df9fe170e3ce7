"""Lock port with Redis, storage and in-process adapters."""
