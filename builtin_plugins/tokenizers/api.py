"""Spellings of tokens, and long texts in chunks; as stable as `core.api`."""

from builtin_plugins.tokenizers.byte_level import byte_level_alphabet
from builtin_plugins.tokenizers.chunked import ChunkedTokenizer
from builtin_plugins.tokenizers.token_bytes import TokenSpeller

__all__ = ["ChunkedTokenizer", "TokenSpeller", "byte_level_alphabet"]
