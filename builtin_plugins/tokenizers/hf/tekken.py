"""Mistral's tekken.json as a tokenizer.json: byte-level BPE with the ranks of tiktoken.

Special tokens have the first ids, unnamed ones too; a vocabulary entry has the id `rank` plus their
number. Reads files of version 7 and later, which list the special tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from builtin_plugins.tokenizers.byte_level import byte_level_alphabet
from core.api import ModelError

TEKKEN: Final = "tekken.json"
ROLES: Final = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
"""Special tokens by role."""


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _Entry(msgspec.Struct):
    rank: int
    token_bytes: bytes


class _Special(msgspec.Struct):
    rank: int
    token_str: str


class _File(msgspec.Struct):
    config: _Config
    vocab: list[_Entry]
    special_tokens: list[_Special]


def to_tokenizer_json(path: Path, content: bytes) -> bytes:
    """Return the tokenizer.json of a tekken.json. Raises `ModelError` for an invalid one."""
    try:
        read = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{path}: got a file that cannot be read ({error}); expected config, vocab and "
            "special_tokens. Give another tokenizer with --tokenizer."
        ) from error
    count = read.config.default_num_special_tokens
    named = {special.rank: special.token_str for special in read.special_tokens}
    texts = [named.get(index, f"<SPECIAL_{index}>") for index in range(count)]
    pieces = [entry.token_bytes for entry in read.vocab[: read.config.default_vocab_size - count]]
    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    wrong = [e.rank for index, e in enumerate(read.vocab[: len(pieces)]) if e.rank != index]
    if wrong or max(named, default=0) >= count or len({*texts}) != count:
        raise ModelError(
            f"{path}: got ranks that are not those of its entries; expected one each, in order. "
            "Download the file again."
        )
    letters = {byte: letter for letter, byte in byte_level_alphabet().items()}
    spell = {piece: "".join(letters[byte] for byte in piece) for piece in pieces}
    # The library gives ids of its own to added tokens that are not in the vocabulary.
    vocab = {text: index for index, text in enumerate(texts)}
    vocab |= {spell[piece]: rank + count for piece, rank in ranks.items()}
    merges = [
        [spell[piece[:at]], spell[piece[at:]]] for piece in pieces for at in _splits(piece, ranks)
    ]
    special: dict[str, Any] = dict.fromkeys(
        ("single_word", "lstrip", "rstrip", "normalized"), False
    )
    added = [{"id": i, "content": text, "special": True, **special} for i, text in enumerate(texts)]
    split = {"pattern": {"Regex": read.config.pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Split", **split}, {**level, "use_regex": False}],
        },
        "post_processor": _starts_with(ROLES["bos_token"], texts),
        "decoder": {**level, "use_regex": True},
        "model": {"type": "BPE", "ignore_merges": True, "vocab": vocab, "merges": merges},
    }
    return msgspec.json.encode(whole)


def _splits(piece: bytes, ranks: dict[bytes, int]) -> list[int]:
    """Return where a piece may be made of two others, of the lowest ranks first."""
    found = [at for at in range(1, len(piece)) if piece[:at] in ranks and piece[at:] in ranks]
    return sorted(found, key=lambda at: (ranks[piece[:at]], ranks[piece[at:]]))


def _starts_with(token: str, texts: list[str]) -> dict[str, Any] | None:
    """Return a post-processor that begins each text with a special token; None without it."""
    if token not in texts:
        return None
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    text, other = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    known = {token: {"id": token, "ids": [texts.index(token)], "tokens": [token]}}
    single = [first, text]
    both = [*single, first, other]
    return {"type": "TemplateProcessing", "single": single, "pair": both, "special_tokens": known}
