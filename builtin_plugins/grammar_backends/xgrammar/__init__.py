"""Grammars by the xgrammar library."""
