"""Probes, version and metrics."""
