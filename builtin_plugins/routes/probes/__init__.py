"""Probes, version and metrics: what operators ask."""
