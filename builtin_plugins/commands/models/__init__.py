"""`engine models`: every architecture there is an answer for."""
