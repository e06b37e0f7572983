"""Structured outputs: requests whose outputs must match a schema, a regex or a grammar."""
