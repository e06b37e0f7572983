"""Tokenizers that only transformers can load (SentencePiece models, custom code)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import transformers

from builtin_plugins.tokenizers.chunked import ChunkedTokenizer, special_tokens_around
from builtin_plugins.tokenizers.hf.control_tokens import ControlTokens, control_texts
from builtin_plugins.tokenizers.hf.settings import TokenizerSettings
from builtin_plugins.tokenizers.hf.split_points import find_split_points
from builtin_plugins.tokenizers.token_bytes import TokenSpeller
from core.api import ModelError
from core.api.serving import RenderedText


class TransformersTokenizer:
    """Tokenizer over a transformers class."""

    def __init__(self, folder: Path, settings: TokenizerSettings, trust_remote_code: bool) -> None:
        load: Any = transformers.AutoTokenizer.from_pretrained
        try:
            self._inner = load(str(folder), trust_remote_code=trust_remote_code)
        except Exception as error:
            raise ModelError(
                f"{folder} holds no readable tokenizer: {error}. Set --tokenizer, or use "
                "--skip-tokenizer-init."
            ) from error
        self.vocab_size: int = max(self._inner.get_vocab().values(), default=-1) + 1
        self.eos_token_id: int | None = self._inner.eos_token_id
        self.special_ids = frozenset(self._inner.all_special_ids)
        self.special_tokens_map = settings.special_tokens
        self.chat_template = settings.chat_template or getattr(self._inner, "chat_template", None)
        self.response_template = settings.response_template
        self.control_texts = control_texts(
            self._inner.added_tokens_decoder.values(),
            settings.special_tokens.values(),
            settings.template_text,
        )
        backend = getattr(self._inner, "backend_tokenizer", None)
        self._control = backend and ControlTokens(
            backend, self.control_texts, self._inner.special_tokens_map.get("unk_token")
        )

    @cached_property
    def split_points(self) -> re.Pattern[str] | None:
        """Pattern of safe split points; computed for the first long text."""
        vocabulary = self._inner.get_vocab()
        return find_split_points(
            lambda text: self.encode(text, False), vocabulary, list(self._inner.get_added_vocab())
        )

    def long_texts(self) -> ChunkedTokenizer:
        """Return what tokenizes long texts in chunks."""
        return ChunkedTokenizer(self)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return token ids; special tokens in the text become their ids."""
        return list(self._inner.encode(text, add_special_tokens=add_special_tokens))

    def encode_rendered(self, text: RenderedText, add_special_tokens: bool = False) -> list[int]:
        """Return ids; control tokens that messages spell are read as text."""
        ids = self._rendered(text)
        around = special_tokens_around(self) if add_special_tokens else None
        return ids if around is None else [*around[0], *ids, *around[1]]

    def _rendered(self, text: RenderedText) -> list[int]:
        if self._control is not None:
            return self._control.encode(text)
        plain = str(text)
        control = {self._inner.convert_tokens_to_ids(each) for each in self.control_texts}
        spans = text.control_spans
        own = [self._inner.convert_tokens_to_ids(plain[slice(*span)]) for span in spans]
        ids = self.encode(plain, add_special_tokens=False)
        if [token for token in ids if token in control] == own:
            return ids
        # transformers tokenizes the texts between added tokens one by one, too
        out = []
        end = 0
        for token, (start, stop) in zip(own, spans, strict=True):
            out += [*self._as_text(plain[end:start]), token]
            end = stop
        return [*out, *self._as_text(plain[end:])]

    def _as_text(self, text: str) -> list[int]:
        encode = self._inner.encode
        return list(encode(text, add_special_tokens=False, split_special_tokens=True))

    def encode_fitted(
        self, text: str, pair: str | None, max_tokens: int | None
    ) -> tuple[list[int], list[int]]:
        """Return ids and type ids of a text or a pair with special tokens, truncated to fit."""
        cut = (
            {} if max_tokens is None else {"truncation": "longest_first", "max_length": max_tokens}
        )
        found = self._inner(text, pair, return_token_type_ids=True, **cut)
        return list(found["input_ids"]), list(found["token_type_ids"])

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return text; invalid or incomplete UTF-8 becomes U+FFFD."""
        text = self._inner.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return str(text)

    @cached_property
    def token_bytes(self) -> Callable[[int], bytes]:
        """Function from a token to the bytes it adds to a text."""
        return TokenSpeller(self)

    def token_text(self, token_id: int) -> str:
        """Return the token's spelling in the vocabulary; empty for unknown ids."""
        return str(self._inner.convert_ids_to_tokens(token_id) or "")
