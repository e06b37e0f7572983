"""Grammars by the lm-format-enforcer library."""
