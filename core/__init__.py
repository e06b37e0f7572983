"""The kernel of the engine."""
