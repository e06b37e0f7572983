"""`engine explain REQUEST_ID`: says why a request of a running server waits or ended."""
