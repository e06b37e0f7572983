"""Takers of measurements."""
