"""Several models on one port, each served by a process of its own."""
