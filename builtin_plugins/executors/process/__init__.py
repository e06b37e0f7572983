"""Subprocesses of the engine: starting them, messages, and detecting the end
of the other side.
"""
