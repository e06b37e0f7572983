"""A tokenizer.json read by the tokenizers library alone: ready in milliseconds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import tokenizers

from builtin_plugins.tokenizers.hf.joints import find_joints
from builtin_plugins.tokenizers.hf.pieces import Pieces
from builtin_plugins.tokenizers.hf.settings import TokenizerSettings
from core.api import ModelError

LONG_CHARS: Final = 8192
"""Of longer texts no more is read than is kept."""
_CHARS_PER_TOKEN: Final = 8


class FastTokenizer:
    """Text to ids and back."""

    def __init__(self, path: Path, settings: TokenizerSettings) -> None:
        try:
            self._inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:
            raise ModelError(
                f"{path} is no tokenizer that can be read: {error}. Download it again."
            ) from error
        self._inner.no_truncation()
        self._inner.no_padding()
        vocabulary = self._inner.get_vocab(with_added_tokens=True)
        added = self._inner.get_added_tokens_decoder()
        self.vocab_size: int = max(vocabulary.values(), default=-1) + 1
        self.text_size: int = (
            max(self._inner.get_vocab(with_added_tokens=False).values(), default=-1) + 1
        )
        """Without the tokens that were added to it, which no plain text becomes."""
        self.special_tokens_map = settings.special_tokens
        self.eos_token_id: int | None = vocabulary.get(settings.special_tokens.get("eos_token", ""))
        roles = {
            vocabulary[text] for text in settings.special_tokens.values() if text in vocabulary
        }
        self.special_ids = frozenset(
            {token for token, facts in added.items() if facts.special} | roles
        )
        self.chat_template = settings.chat_template
        self.response_template = settings.response_template
        self._around = _around(self._inner, vocabulary, settings)
        hidden = frozenset(token for token, facts in added.items() if facts.special)
        # Of all decoders this one alone does nothing but join.
        joins = isinstance(self._inner.decoder, tokenizers.decoders.ByteLevel)
        self._pieces = (Pieces(self._inner), Pieces(self._inner, hidden)) if joins else None

    @cached_property
    def joints(self) -> re.Pattern[str] | None:
        """Where texts may be cut; looked for when the first long text comes."""
        added = [token.content for token in self._inner.get_added_tokens_decoder().values()]
        return find_joints(lambda text: self._encode(text, False), self._inner.get_vocab(), added)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return token ids; special tokens written in the text become their ids."""
        if not add_special_tokens or self._around is None:
            return self._encode(text, add_special_tokens)
        before, after = self._around
        return [*before, *self._encode(text, False), *after]

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # A batch of one: `encode` itself keeps the interpreter lock, and a long text would stop
        # every stream.
        ids: list[int] = self._inner.encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )[0].ids
        return ids

    def encode_fitted(
        self, text: str, pair: str | None, max_tokens: int | None
    ) -> tuple[list[int], list[int]]:
        """Return ids and type ids of a text or a pair with special tokens; ends of texts are cut to
        fit.
        """
        if pair is None and self._around is not None:
            before, after = self._around
            room = None if max_tokens is None else max(0, max_tokens - len(before) - len(after))
            ids = [*before, *self._encode(self._beginning(text, room), False)[:room], *after]
            return ids, [0] * len(ids)
        # Of two long texts, an odd token may go to the other one than if both were read whole.
        texts = [self._beginning(each, max_tokens) for each in (text, pair) if each is not None]
        parts = self._inner.encode_batch(texts, add_special_tokens=False)
        if max_tokens is not None:
            room = max(0, max_tokens - self._inner.num_special_tokens_to_add(pair is not None))
            for part, size in zip(parts, fitting([len(part) for part in parts], room), strict=True):
                part.truncate(size)
        whole = self._inner.post_process(
            parts[0], parts[1] if len(parts) > 1 else None, add_special_tokens=True
        )
        return whole.ids, whole.type_ids

    def _beginning(self, text: str, num_tokens: int | None) -> str:
        """Return as much of a text as has more tokens than so many, where it has; they are the
        whole text's.
        """
        if num_tokens is None or len(text) <= LONG_CHARS or self.joints is None:
            return text
        size = max(LONG_CHARS, _CHARS_PER_TOKEN * num_tokens)
        while size < len(text) and (joint := self.joints.search(text, size - 1)) is not None:
            if len(self._encode(text[: joint.end()], False)) > num_tokens:
                return text[: joint.end()]
            size = 2 * joint.end()
        return text

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return text; bytes that are not (yet) UTF-8 come out as U+FFFD."""
        text: str = self._inner.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def joined_bytes(self, skip_special_tokens: bool) -> Mapping[int, bytes] | None:
        """Return what each token adds to a text; None where a text is more than that joined."""
        return None if self._pieces is None else self._pieces[skip_special_tokens]

    def token_text(self, token_id: int) -> str:
        """Return the token as the vocabulary spells it; empty for an id it lacks."""
        return self._inner.id_to_token(token_id) or ""


def fitting(lengths: list[int], room: int) -> list[int]:
    """Return how long each of one or two parts may be so that all fit; the longer one gives first."""
    if sum(lengths) <= room or len(lengths) == 1:
        return [min(length, room) for length in lengths]
    short = min(min(lengths), room // 2)
    return [short, room - short] if lengths[0] <= lengths[1] else [room - short, short]


def _around(
    inner: tokenizers.Tokenizer, vocabulary: dict[str, int], settings: TokenizerSettings
) -> tuple[list[int], list[int]] | None:
    """Return the tokens before and after a text where the settings contradict tokenizer.json, else
    None.
    """
    bos = vocabulary.get(settings.special_tokens.get("bos_token", ""))
    eos = vocabulary.get(settings.special_tokens.get("eos_token", ""))
    empty: list[int] = inner.encode("", add_special_tokens=True).ids
    has_bos = bool(empty) and empty[0] == bos
    has_eos = bool(empty) and empty[-1] == eos
    wants_bos = has_bos if settings.add_bos is None or bos is None else settings.add_bos
    wants_eos = has_eos if settings.add_eos is None or eos is None else settings.add_eos
    if (wants_bos, wants_eos) == (has_bos, has_eos):
        return None
    return [bos] if wants_bos and bos is not None else [], [
        eos
    ] if wants_eos and eos is not None else []
