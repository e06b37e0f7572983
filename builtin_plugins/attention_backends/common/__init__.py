"""Code shared by several attention backends."""
