"""Checks a tokenizer.json before the tokenizers library loads it.

The library aborts the process if memory runs out, and it does not bound how much a text may grow or
how long a match may take. The vocabulary is skipped while reading, so a check takes milliseconds.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from builtin_plugins.tokenizers.hf.regex_cost import CostlyRegexError, check_regex
from core.api import ModelError

MAX_FILE_BYTES: Final = 128 << 20
MAX_SECTION_BYTES: Final = 8 << 20
"""Size limit of a section; a precompiled normalizer takes 0.4 MB."""
MAX_PARTS: Final = 64
"""Limit of the parts of a normalizer, pre-tokenizer, post-processor or decoder."""
MAX_GROWTH: Final = 16
"""Limit of the characters that a normalizer makes of one."""
MAX_PIECE_BYTES: Final = 256
"""Limit of a replacement of a precompiled normalizer; the longest of NFKC has 33 bytes."""
MAX_SPECIAL_TOKENS: Final = 64
"""Limit of the special tokens that a post-processor adds to a text."""
MAX_STRIPPED: Final = 1 << 16
"""Limit of the characters that a decoder removes from a token."""
MAX_WORD_CHARS: Final = 1000
"""Limit of a word that WordPiece splits, which takes work quadratic in it."""
MAX_UNIGRAM_CHARS: Final = 4 << 20
"""Limit of the characters of a Unigram vocabulary; the library's trie takes 350 bytes for each."""
_CHILDREN: Final = ("normalizers", "pretokenizers", "processors", "decoders")
_SECTIONS: Final = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_ADVICE: Final = "Use the model's own file, or --trust-remote-code if you trust this one."


_ABSENT: Final = msgspec.Raw(b"null")


class _Model(msgspec.Struct):
    type: str | None = None
    max_input_chars_per_word: int = 100
    vocab: msgspec.Raw = _ABSENT


class _File(msgspec.Struct):
    model: _Model = msgspec.field(default_factory=_Model)
    normalizer: msgspec.Raw = _ABSENT
    pre_tokenizer: msgspec.Raw = _ABSENT
    post_processor: msgspec.Raw = _ABSENT
    decoder: msgspec.Raw = _ABSENT


_decode = msgspec.json.Decoder(_File).decode
_decode_pieces = msgspec.json.Decoder(list[tuple[str, float]]).decode


class TokenizerFileError(ValueError):
    """A part of a file that the library may not load: `<field>: got X; expected Y.`"""


def check_tokenizer_file(path: Path, content: bytes) -> None:
    """Raise `ModelError` for a tokenizer.json that would take unbounded memory or time."""
    try:
        file = _decode(content)
        _check_model(file.model)
        for name in _SECTIONS:
            parts = _read_section(name, getattr(file, name))
            for part in parts:
                _check_part(name, part)
            if name == "normalizer":
                _check_growth(parts)
    except TokenizerFileError as error:
        raise ModelError(f"{path}: {error} {_ADVICE}") from error
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{path} is no tokenizer that can be read: {error}. Download it again."
        ) from error


def _read_section(name: str, content: msgspec.Raw) -> list[Mapping[str, Any]]:
    """Return the parts of a section."""
    size = len(memoryview(content))
    if size > MAX_SECTION_BYTES:
        raise _fault(name, f"{size} bytes", f"up to {MAX_SECTION_BYTES}")
    parts = list(_parts(msgspec.json.decode(content)))
    if len(parts) > MAX_PARTS:
        raise _fault(name, f"{len(parts)} parts", f"up to {MAX_PARTS}")
    return parts


def _fault(field: str, given: str, expected: str) -> TokenizerFileError:
    return TokenizerFileError(f"{field}: got {given}; expected {expected}.")


def _check_model(model: _Model) -> None:
    size = model.max_input_chars_per_word
    if model.type == "WordPiece" and size > MAX_WORD_CHARS:
        raise _fault("model.max_input_chars_per_word", f"{size}", f"up to {MAX_WORD_CHARS}")
    if model.type == "Unigram" or (model.type is None and bytes(model.vocab).startswith(b"[")):
        total = sum(len(piece) for piece, _ in _decode_pieces(model.vocab))
        if total > MAX_UNIGRAM_CHARS:
            raise _fault("model.vocab", f"{total} characters", f"up to {MAX_UNIGRAM_CHARS}")


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a component and those in it."""
    open_ = [value]
    while open_:
        item = open_.pop()
        if isinstance(item, Mapping):
            yield item
            for name in _CHILDREN:
                if isinstance(children := item.get(name), list):
                    open_ += reversed(children)


def _check_part(section: str, part: Mapping[str, Any]) -> None:
    kind = part.get("type")
    pattern = part.get("pattern")
    regex = pattern.get("Regex") if isinstance(pattern, Mapping) else None
    if isinstance(regex, str):
        try:
            check_regex(regex)
        except CostlyRegexError as error:
            raise _fault(
                section,
                f"the regular expression {regex!r:.80} with {error}",
                "one that matches in bounded time",
            ) from error
    if kind == "FixedLength" and part.get("length") == 0:
        raise _fault(f"{section}.length", "0", "a positive length")
    if kind == "Strip" and section == "decoder":
        for name in ("start", "stop"):
            if isinstance(count := part.get(name), int) and count > MAX_STRIPPED:
                raise _fault(f"{section}.{name}", f"{count}", f"up to {MAX_STRIPPED}")
    if kind == "Precompiled" and isinstance(charsmap := part.get("precompiled_charsmap"), str):
        _check_charsmap(section, charsmap)
    if kind == "TemplateProcessing":
        tokens = part.get("special_tokens")
        known = tokens if isinstance(tokens, Mapping) else {}
        for name in ("single", "pair"):
            pieces = part.get(name)
            count = sum(_num_tokens(piece, known) for piece in pieces or ())
            if count > MAX_SPECIAL_TOKENS:
                raise _fault(
                    f"{section}.{name}", f"{count} special tokens", f"up to {MAX_SPECIAL_TOKENS}"
                )


def _num_tokens(piece: Any, known: Mapping[str, Any]) -> int:
    """Return how many tokens a piece of a template adds; a text counts as one."""
    token = piece.get("SpecialToken") if isinstance(piece, Mapping) else None
    stated = known.get(str(token.get("id"))) if isinstance(token, Mapping) else None
    ids = stated.get("ids") if isinstance(stated, Mapping) else None
    return len(ids) if isinstance(ids, list) else 1


def _check_charsmap(section: str, charsmap: str) -> None:
    """Check the size of the trie in a SentencePiece character map, and its replacements."""
    field = f"{section}.precompiled_charsmap"
    try:
        content = base64.b64decode(charsmap, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _fault(field, "no base64", "base64") from error
    size = int.from_bytes(content[:4], "little")
    if len(content) < 4 or size % 4 or size > len(content) - 4:
        raise _fault(field, f"a trie of {size} bytes in {len(content)}", "a trie within the map")
    longest = max(map(len, content[4 + size :].split(b"\0")))
    if longest > MAX_PIECE_BYTES:
        raise _fault(field, f"a replacement of {longest} bytes", f"up to {MAX_PIECE_BYTES}")


def _check_growth(parts: list[Mapping[str, Any]]) -> None:
    """Check how much a text may grow in a normalizer."""
    growth = 1
    for part in parts:
        growth *= _growth(part)
        if growth > MAX_GROWTH:
            raise _fault(
                "normalizer",
                f"replacements that make {growth} characters of one",
                f"up to {MAX_GROWTH}",
            )


def _growth(part: Mapping[str, Any]) -> int:
    if part.get("type") == "Prepend":
        return 1 + len(str(part.get("prepend")))
    if part.get("type") != "Replace":
        return 1
    pattern = part.get("pattern")
    text = pattern.get("String") if isinstance(pattern, Mapping) else None
    replaced = len(text) if isinstance(text, str) else 1
    return max(1, -(-len(str(part.get("content"))) // max(1, replaced)))
