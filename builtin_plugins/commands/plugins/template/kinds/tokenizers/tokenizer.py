"""A tokenizer. This one maps bytes to tokens and needs no files; read yours from `source.path`."""

from __future__ import annotations

from collections.abc import Sequence

from core.api import EngineConfig
from core.api.models import ModelSource

EXAMPLES = [("Ab", [65, 98]), ("é", [195, 169])]
"""Texts and their token ids without special tokens, tested by the conformance suite."""
END = "<|end|>"
END_ID = 256


class Acme:
    """Tokens 0 to 255 are bytes; token 256 ends a sequence."""

    vocab_size = 257
    eos_token_id: int | None = END_ID
    special_ids = frozenset({END_ID})
    chat_template: str | None = None

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        pass

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return token ids; the text of the end token becomes its id."""
        ids: list[int] = []
        for i, part in enumerate(text.split(END)):
            ids += [END_ID] * (i > 0) + list(part.encode())
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return text; incomplete UTF-8 becomes U+FFFD."""
        end = b"" if skip_special_tokens else END.encode()
        text = b"".join(end if token == END_ID else bytes([token]) for token in ids)
        return text.decode(errors="replace")

    def token_text(self, token_id: int) -> str:
        """Return the text of one token."""
        return self.decode([token_id])
