"""Adapters loaded and unloaded over HTTP, where the operator allows it."""
