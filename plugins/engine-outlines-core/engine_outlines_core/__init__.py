"""Grammars by the outlines-core library."""
