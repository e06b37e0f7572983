"""Cached blocks in LMCache: its memory, and the folders, servers and buckets behind it."""
