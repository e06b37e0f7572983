"""Implementations of ops."""
