"""`engine models`: lists the supported model architectures."""
