"""Cached blocks between engines over NIXL."""
