"""Several engines of one model with one client: data parallelism."""
