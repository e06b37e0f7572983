"""Resolvers of adapters that are not configured: a local folder, and the hub."""
