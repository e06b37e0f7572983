"""Runners: what models are run for, and what follows their layers."""
