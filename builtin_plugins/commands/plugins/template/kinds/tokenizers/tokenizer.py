"""A tokenizer. This one takes bytes as tokens and needs no file; read yours from `source.path`."""

from __future__ import annotations

from collections.abc import Sequence

from core.api import EngineConfig, ModelSource

EXAMPLES = [("Ab", [65, 98]), ("é", [195, 169])]
"""Texts and their ids, special tokens left out: the conformance suite compares."""
END = "<|end|>"
END_ID = 256


class Acme:
    """Tokens 0 to 255 are bytes; one more ends a sequence."""

    vocab_size = 257
    eos_token_id: int | None = END_ID
    special_ids = frozenset({END_ID})
    chat_template: str | None = None

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        pass

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return token ids; the end token written in the text becomes its id."""
        ids: list[int] = []
        for i, part in enumerate(text.split(END)):
            ids += [END_ID] * (i > 0) + list(part.encode())
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return text; bytes that are not (yet) UTF-8 come out as U+FFFD."""
        end = b"" if skip_special_tokens else END.encode()
        return b"".join(end if token == END_ID else bytes([token]) for token in ids).decode(
            errors="replace"
        )

    def token_text(self, token_id: int) -> str:
        """Return one token as text."""
        return self.decode([token_id])
