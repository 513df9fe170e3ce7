"""The main job on real data: many writers, all services, a verified result. `tideline demo` runs it."""
