"""Paths of other servers that are not served, with what is missing."""
