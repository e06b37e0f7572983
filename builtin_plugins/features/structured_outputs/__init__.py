"""Structured outputs: outputs that must match a JSON schema, a regex or a grammar."""
