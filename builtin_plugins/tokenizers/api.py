"""Spellings of tokens, for other kinds; as stable as `core.api`."""

from builtin_plugins.tokenizers.byte_level import byte_level_alphabet

__all__ = ["byte_level_alphabet"]
