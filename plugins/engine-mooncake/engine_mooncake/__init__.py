"""Cached blocks between engines over the transfer engine of Mooncake."""
