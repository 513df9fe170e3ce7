"""The demo: many writers and all services on real data, with a verified result. `make demo` runs it."""
