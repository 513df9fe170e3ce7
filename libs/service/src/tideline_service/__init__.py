"""What all services share: settings, logging, metrics, health, life cycle, table discovery, supervision.

A service is a class with `start`, `tick` and `stop` (`contract.Service`); everything around it lives here. What one service decides
belongs into that service, what a table is belongs into `tideline_table`. Import from the modules; the package itself imports nothing.
"""
