"""The KV cache dtype that a checkpoint requests."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

log = logging.getLogger(__name__)

EIGHT_BITS: Final = "float8_e4m3fn"
NAMES: Final = ("FP8", "fp8", "fp8_e4m3")


def kv_cache_dtype_of(scheme: Any) -> str | None:
    """Return the KV cache dtype of a scheme; None: the model's dtype.

    `scheme` is a name, or an object as compressed-tensors uses for weights. An unknown scheme is
    logged and gives None: the model's dtype is never less exact than the requested one.
    """
    if not scheme:
        return None
    if isinstance(scheme, Mapping):
        facts = {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True, **scheme}
        known = facts["type"] == "float" and facts["num_bits"] == 8 and facts["symmetric"]
        known = known and facts["strategy"] in ("tensor", "attn_head")
    else:
        known = scheme in NAMES
    if not known:
        log.warning(
            "kv_cache_scheme: got %.200s; expected fp8 with one scale per tensor or per head. "
            "Keys and values are cached in the model's dtype.",
            scheme,
        )
    return EIGHT_BITS if known else None
