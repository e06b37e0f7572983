"""Formats that several tools share, with tensor names as parameters."""
