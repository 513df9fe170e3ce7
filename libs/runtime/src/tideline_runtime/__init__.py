"""Shared parts of all services: settings, logging, metrics, health, life cycle, table discovery, supervision.

A service is a class with `start`, `tick` and `stop` (`contract.Service`); this package runs it. Decisions of one service belong in
that service, table semantics in `tideline_table`. Import from the modules.
"""
