"""The demo: many writers and all services on real data, with a verified result. `tideline demo` runs it."""
