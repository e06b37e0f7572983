"""Tokenizers of a tokenizer.json, by the tokenizers library; loads in milliseconds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import tokenizers

from builtin_plugins.tokenizers.byte_level import byte_level_alphabet
from builtin_plugins.tokenizers.chunked import ChunkedTokenizer, special_tokens_around
from builtin_plugins.tokenizers.hf.control_tokens import ControlTokens, control_texts
from builtin_plugins.tokenizers.hf.file_check import MAX_FILE_BYTES, check_tokenizer_file
from builtin_plugins.tokenizers.hf.library import INTERRUPTS, decode_ids, encode_ids, encode_texts
from builtin_plugins.tokenizers.hf.settings import TokenizerSettings
from builtin_plugins.tokenizers.hf.split_points import find_split_points
from builtin_plugins.tokenizers.hf.tekken import TEKKEN, to_tokenizer_json
from builtin_plugins.tokenizers.token_bytes import TokenSpeller
from builtin_plugins.weight_loaders.api import open_regular
from core.api import ModelError
from core.api.serving import RenderedText
from core.model_spec.config_fields import MAX_COUNT

LONG_CHARS: Final = 8192
"""Length in characters above which only the needed beginning of a text is tokenized."""
_CHARS_PER_TOKEN: Final = 8


class FastTokenizer:
    """Tokenizer over the tokenizers library."""

    def __init__(
        self, path: Path, settings: TokenizerSettings, *, is_trusted: bool = False
    ) -> None:
        """`is_trusted`: the file is loaded without a check of its regular expressions and sizes."""
        self._inner = _load(path, is_trusted)
        self._inner.no_truncation()
        self._inner.no_padding()
        vocabulary = self._inner.get_vocab(with_added_tokens=True)
        added = self._inner.get_added_tokens_decoder()
        self.vocab_size: int = max(vocabulary.values(), default=-1) + 1
        if self.vocab_size > MAX_COUNT:
            raise ModelError(
                f"{path}: the largest token id: got {self.vocab_size - 1}; expected up to "
                f"{MAX_COUNT}. Download it again."
            )
        self.text_size: int = (
            max(self._inner.get_vocab(with_added_tokens=False).values(), default=-1) + 1
        )
        """Vocabulary size without added tokens, which plain text never produces."""
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
        self.control_texts = control_texts(
            added.values(), settings.special_tokens.values(), settings.template_text
        )
        self._control = ControlTokens(
            self._inner, self.control_texts, settings.special_tokens.get("unk_token")
        )
        self._around = _around(self._inner, vocabulary, settings)
        hidden = frozenset(token for token, facts in added.items() if facts.special)
        # Only the ByteLevel decoder is a plain concatenation.
        joins = isinstance(self._inner.decoder, tokenizers.decoders.ByteLevel)
        self._token_bytes = (
            (TokenBytes(self._inner), TokenBytes(self._inner, hidden)) if joins else None
        )

    @cached_property
    def split_points(self) -> re.Pattern[str] | None:
        """Pattern of safe split points; computed for the first long text."""
        added = [token.content for token in self._inner.get_added_tokens_decoder().values()]
        return find_split_points(
            lambda text: self._encode(text, False), self._inner.get_vocab(), added
        )

    def long_texts(self) -> ChunkedTokenizer:
        """Return what tokenizes long texts in chunks."""
        return ChunkedTokenizer(self)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return token ids; special tokens in the text become their ids."""
        if not add_special_tokens or self._around is None:
            return self._encode(text, add_special_tokens)
        before, after = self._around
        return [*before, *self._encode(text, False), *after]

    def encode_rendered(self, text: RenderedText, add_special_tokens: bool = False) -> list[int]:
        """Return ids; control tokens that messages spell are read as text."""
        ids = self._control.encode(text)
        around = special_tokens_around(self) if add_special_tokens else None
        return ids if around is None else [*around[0], *ids, *around[1]]

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return encode_ids(self._inner, text, add_special_tokens)

    def encode_fitted(
        self, text: str, pair: str | None, max_tokens: int | None
    ) -> tuple[list[int], list[int]]:
        """Return ids and type ids of a text or a pair with special tokens, truncated to fit."""
        if pair is None and self._around is not None:
            before, after = self._around
            room = None if max_tokens is None else max(0, max_tokens - len(before) - len(after))
            ids = [*before, *self._encode(self._beginning(text, room), False)[:room], *after]
            return ids, [0] * len(ids)
        # With two long texts, truncation may differ by one token from tokenizing both completely.
        texts = [self._beginning(each, max_tokens) for each in (text, pair) if each is not None]
        parts = encode_texts(self._inner, texts)
        if max_tokens is not None:
            room = max(0, max_tokens - self._inner.num_special_tokens_to_add(pair is not None))
            for part, size in zip(parts, fitting([len(part) for part in parts], room), strict=True):
                part.truncate(size)
        whole = self._inner.post_process(
            parts[0], parts[1] if len(parts) > 1 else None, add_special_tokens=True
        )
        return whole.ids, whole.type_ids

    def _beginning(self, text: str, num_tokens: int | None) -> str:
        """Return a beginning of a text with more than `num_tokens` tokens, split at a safe
        point.
        """
        if num_tokens is None or len(text) <= LONG_CHARS or self.split_points is None:
            return text
        size = max(LONG_CHARS, _CHARS_PER_TOKEN * num_tokens)
        while size < len(text) and (split := self.split_points.search(text, size - 1)) is not None:
            if len(self._encode(text[: split.end()], False)) > num_tokens:
                return text[: split.end()]
            size = 2 * split.end()
        return text

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return text; invalid or incomplete UTF-8 becomes U+FFFD."""
        return decode_ids(self._inner, ids, skip_special_tokens)

    def joined_bytes(self, skip_special_tokens: bool) -> Mapping[int, bytes] | None:
        """Return each token's bytes; None if a text is not their concatenation."""
        return None if self._token_bytes is None else self._token_bytes[skip_special_tokens]

    @cached_property
    def token_bytes(self) -> Callable[[int], bytes]:
        """Function from a token to the bytes it adds to a text."""
        joined = self.joined_bytes(False)
        return TokenSpeller(self) if joined is None else joined.__getitem__

    def token_text(self, token_id: int) -> str:
        """Return the token's spelling in the vocabulary; empty for unknown ids."""
        return self._inner.id_to_token(token_id) or ""


def _load(path: Path, is_trusted: bool) -> tokenizers.Tokenizer:
    """Return the tokenizer of a file. Raises `ModelError` for one that cannot be read."""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(content) > MAX_FILE_BYTES:
        raise ModelError(
            f"{path}: got more than {MAX_FILE_BYTES} bytes; expected fewer. Download it again."
        )
    if path.name == TEKKEN:
        content = to_tokenizer_json(path, content)
    if not is_trusted:
        check_tokenizer_file(path, content)
    try:
        return tokenizers.Tokenizer.from_buffer(content)
    except INTERRUPTS:
        raise
    except BaseException as error:
        raise ModelError(
            f"{path} is no tokenizer that can be read: {error!s:.500}. Download it again."
        ) from error


def fitting(lengths: list[int], room: int) -> list[int]:
    """Return the truncated lengths of one or two parts; the longer one is truncated first."""
    if sum(lengths) <= room or len(lengths) == 1:
        return [min(length, room) for length in lengths]
    short = min(min(lengths), room // 2)
    return [short, room - short] if lengths[0] <= lengths[1] else [room - short, short]


def _around(
    inner: tokenizers.Tokenizer, vocabulary: dict[str, int], settings: TokenizerSettings
) -> tuple[list[int], list[int]] | None:
    """Return special tokens around a text if the settings override tokenizer.json; else None."""
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


BYTES: Final = byte_level_alphabet()


class TokenBytes(dict[int, bytes]):
    """Bytes of byte-level tokens by id, computed on first access; empty for hidden tokens.

    As in the library's decoder, a spelling in the byte-level alphabet stands for its bytes; any
    other spelling (of an added token) stands for itself.
    """

    def __init__(self, inner: tokenizers.Tokenizer, hidden: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self._inner = inner
        self._hidden = hidden

    def __missing__(self, token: int) -> bytes:
        spelt = None if token in self._hidden else self._inner.id_to_token(token)
        if spelt is None:
            piece = b""
        elif all(character in BYTES for character in spelt):
            piece = bytes(BYTES[character] for character in spelt)
        else:
            piece = spelt.encode()
        self[token] = piece
        return piece
