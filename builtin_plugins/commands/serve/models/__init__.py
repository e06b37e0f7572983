"""Several models behind one port, each served by a process of its own."""
