"""A tokenizer of byte-level pieces (llama.cpp calls it gpt2), as tokenizer.json has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from core.api import ModelError, did_you_mean

_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3: Final = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2: Final = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CASED: Final = rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+", rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
_ENDS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT4O: Final = rf"{_CASED[0]}{_CONTRACTIONS}?|{_CASED[1]}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_ENDS}"
_TEKKEN: Final = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_ENDS}"
_DIGITS: Final = r"\p{N}"
_DEEPSEEK3: Final = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_SPLITS: Final[dict[str, Sequence[str]]] = {
    **dict.fromkeys(("default", "gpt-2", "phi-2", "jina-en", "olmo", "mpt", "gpt-neox"), (_GPT2,)),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "dbrx", "smaug-bpe"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"), (_QWEN2,)),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), (_DIGITS, _GPT2)
    ),
    **dict.fromkeys(("gpt-4o", "llama4"), (_GPT4O,)),
    "tekken": (_TEKKEN,),
    "deepseek-v3": _DEEPSEEK3,
}
"""Expressions by which a text is split, one after the other, by llama.cpp's name."""
_WHOLE_WORDS: Final = ("llama3", "llama-v3", "llama-bpe", "falcon3", "smaug-bpe", "gpt-4o", "tekken", "llama4")
"""Of these a piece that is a token is one, whatever its merges."""


def byte_level(tokens: Sequence[str], merges: Sequence[str], splits: str) -> dict[str, Any]:
    """Return the fields of tokenizer.json. Raises `ModelError` for merges that are none and unknown ways of splitting."""
    if splits not in _SPLITS:
        raise ModelError(
            f"its tokenizer splits texts as {splits!r:.60}, which is not known{did_you_mean(splits, _SPLITS) or '.'} Give the "
            "tokenizer of the model it was made from with --tokenizer."
        )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [merge.split(" ", 1) for merge in merges]
    known = [pair for pair in pairs if len(pair) == 2 and pair[0] in vocabulary and pair[1] in vocabulary]
    known = [pair for pair in known if pair[0] + pair[1] in vocabulary]
    if len(known) < len(pairs):
        raise ModelError(
            f"{len(pairs) - len(known)} of its tokenizer's {len(pairs)} merges are of tokens that it has not. Give the "
            "tokenizer of the model it was made from with --tokenizer."
        )
    steps = [
        {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
        for each in _SPLITS[splits]
    ]
    as_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, as_bytes]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "byte_fallback": False,
            "fuse_unk": False,
            "ignore_merges": splits in _WHOLE_WORDS,
            "vocab": vocabulary,
            "merges": known,
        },
    }
