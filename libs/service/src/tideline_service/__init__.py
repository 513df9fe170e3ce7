"""What all services share: settings, life cycle, health, metrics, logging."""
