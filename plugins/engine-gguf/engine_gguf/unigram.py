"""A tokenizer of pieces with probabilities (llama.cpp calls it t5), as tokenizer.json has it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from core.api import ModelError
from engine_gguf.pieces import SPACE

_GIVE: Final = "Give the tokenizer of the model it was made from with --tokenizer."
_LEAF: Final = 1 << 31
_WORD: Final = 4


def unigram(
    tokens: Sequence[str],
    scores: Sequence[float],
    unknown: int | None,
    *,
    has_bytes: bool,
    charsmap: np.ndarray[Any, Any] | None,
    begins: bool,
    shortens: bool,
) -> dict[str, Any]:
    """Return the fields of tokenizer.json.

    `begins`: a space is put before a text; `shortens`: of several spaces one is left. Raises
    `ModelError` for a map of letters that is none, scores that are no numbers, and without a token
    for unknown pieces.
    """
    if unknown is None or not np.isfinite(scores).all():
        what = "no token for unknown pieces" if unknown is None else "scores that are no numbers"
        raise ModelError(f"its tokenizer has {what}. {_GIVE}")
    before: list[dict[str, Any]] = []
    if charsmap is not None and charsmap.size:
        before.append(
            {
                "type": "Precompiled",
                "precompiled_charsmap": base64.b64encode(_checked(charsmap)).decode(),
            }
        )
    if shortens:
        before.append({"type": "Strip", "strip_left": False, "strip_right": True})
        before.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": SPACE})
    space = {
        "type": "Metaspace",
        "replacement": SPACE,
        "prepend_scheme": "always" if begins else "never",
        "split": True,
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": before} if before else None,
        "pre_tokenizer": space,
        "decoder": space,
        "model": {
            "type": "Unigram",
            "unk_id": unknown,
            "byte_fallback": has_bytes,
            "vocab": [[token, float(score)] for token, score in zip(tokens, scores, strict=True)],
        },
    }


def _checked(charsmap: np.ndarray[Any, Any]) -> bytes:
    """Return the bytes of a map of letters, none of whose steps leads out of it: the library
    follows them blindly.
    """
    data = charsmap.astype(np.uint8, casting="unsafe").tobytes()
    size = int.from_bytes(data[:_WORD], "little")
    fits = (
        charsmap.dtype.itemsize == 1
        and size
        and size % (256 * _WORD) == 0
        and size + _WORD <= len(data)
    )
    if fits:
        units = np.frombuffer(data, "<u4", size // _WORD, _WORD).astype(np.int64)
        places = np.arange(len(units))
        targets = places ^ ((units >> 10) << ((units & 512) >> 6))
        leaves = units >= _LEAF
        fits = bool(
            (targets[~leaves] < len(units)).all()
            and (units[leaves] - _LEAF < len(data) - size - _WORD).all()
        )
    try:
        data[_WORD + size :].decode()
    except UnicodeDecodeError:
        fits = False
    if not fits:
        raise ModelError(
            f"its tokenizer's map of letters (precompiled_charsmap) is damaged. {_GIVE}"
        )
    return data
