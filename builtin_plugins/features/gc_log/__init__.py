"""A log of garbage collections (`--gc-debug`)."""
