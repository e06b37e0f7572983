"""Connector `tcp`: blocks that other engines fetch from this one's host memory, or this one from
theirs.
"""
