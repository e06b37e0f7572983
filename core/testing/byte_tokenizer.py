"""A tokenizer of raw bytes with one special token: enough for tests without any file."""

from __future__ import annotations

from collections.abc import Sequence


class ByteTokenizer:
    """Token ids 0 to 255 are bytes; 256 ends a sequence."""

    vocab_size = 257
    eos_token_id = 256
    special_ids = frozenset({256})
    chat_template = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the bytes of the text."""
        return list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text; broken bytes come out as U+FFFD."""
        special = b"" if skip_special_tokens else b"<|eos|>"
        return b"".join(bytes([i]) if i < 256 else special for i in ids).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return what one token stands for."""
        return bytes([token_id]) if token_id < 256 else b""

    def token_text(self, token_id: int) -> str:
        """Return one token as text."""
        return self.decode([token_id])
