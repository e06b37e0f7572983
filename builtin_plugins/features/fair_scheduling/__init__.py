"""Rows are shared evenly among clients."""
