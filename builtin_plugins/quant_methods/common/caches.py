"""In which numbers a checkpoint wants keys and values cached."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

log = logging.getLogger(__name__)

EIGHT_BITS: Final = "float8_e4m3fn"
NAMES: Final = ("FP8", "fp8", "fp8_e4m3")


def kv_dtype_of(scheme: Any) -> str | None:
    """Return the dtype that a scheme of caches names; None, the model's own, where there is no
    scheme or another one.

    `scheme` is a name, or an object as compressed-tensors has it for weights. What is not known is
    never worse than what was asked for: keys and values are then cached as they are.
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
            "the checkpoint's scheme of cached keys and values is not known (%.200s); they are "
            "cached in the model's dtype. Known is "
            "fp8 with a factor for all heads or one for each.",
            scheme,
        )
    return EIGHT_BITS if known else None
