"""The engine: resolves the configuration, builds the parts, and runs the loop."""
