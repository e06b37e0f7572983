"""Plugins that were written for vLLM."""
