"""`engine tune`: measures this machine and writes a configuration for a model."""
