"""The Hudi table engine on Arrow."""
