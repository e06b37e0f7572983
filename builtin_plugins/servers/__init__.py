"""Servers that carry route groups."""
