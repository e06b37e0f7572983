"""Servers of route groups."""
