"""A tokenizer of byte-level pieces (llama.cpp calls it gpt2), as tokenizer.json has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.api import ModelError, did_you_mean
from engine_gguf.splits import SPLITS, WHOLE


def byte_level(tokens: Sequence[str], merges: Sequence[str], splits: str) -> dict[str, Any]:
    """Return the fields of tokenizer.json.

    Raises `ModelError` for merges that are none and unknown ways of splitting.
    """
    if splits not in SPLITS:
        raise ModelError(
            f"its tokenizer splits texts as {splits!r:.60}, which is not "
            f"known{did_you_mean(splits, SPLITS) or '.'} Give the "
            "tokenizer of the model it was made from with --tokenizer."
        )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    known = known_merges(vocabulary, merges)
    steps = [
        {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
        for each in SPLITS[splits]
    ]
    as_bytes = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, as_bytes]},
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "byte_fallback": False,
            "fuse_unk": False,
            "ignore_merges": splits in WHOLE,
            "vocab": vocabulary,
            "merges": known,
        },
    }


def known_merges(vocabulary: Mapping[str, int], merges: Sequence[str]) -> list[list[str]]:
    """Return the pairs that are merged. Raises `ModelError` for those of tokens that there are not."""
    pairs = [merge.split(" ", 1) for merge in merges]
    known = [
        pair for pair in pairs if len(pair) == 2 and pair[0] in vocabulary and pair[1] in vocabulary
    ]
    known = [pair for pair in known if pair[0] + pair[1] in vocabulary]
    if len(known) < len(pairs):
        raise ModelError(
            f"{len(pairs) - len(known)} of its tokenizer's {len(pairs)} merges are of tokens that "
            "it has not. Give the "
            "tokenizer of the model it was made from with --tokenizer."
        )
    return known
