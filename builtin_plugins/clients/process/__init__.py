"""The engine in its own process, restarted when it dies."""
