"""Grammars by the llguidance library."""
