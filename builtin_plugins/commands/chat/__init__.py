"""`engine chat` and `engine complete`: talk to a running server."""
