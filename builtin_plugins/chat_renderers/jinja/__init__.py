"""Chat templates written in Jinja, as checkpoints carry them."""
