"""Which sampling parameters the kernel serves itself, and which need a logits processor. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from core.types import SamplingParams

if TYPE_CHECKING:
    from core.contracts import AdmissionExtension, LogitsProcessor

PROCESSED: Final = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_p",
    "min_tokens",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "structured_outputs",
)
"""Fields that mean nothing unless a plugin lists them in its `params`."""

_DEFAULTS: Final = SamplingParams()


def unserved_params(
    sampling: SamplingParams,
    processors: Iterable[LogitsProcessor | type[LogitsProcessor] | AdmissionExtension],
) -> list[str]:
    """Return the fields that are set although nothing loaded serves them."""
    asked = [name for name in PROCESSED if getattr(sampling, name) != getattr(_DEFAULTS, name)]
    if not asked:
        return []
    served = {name for processor in processors for name in processor.params}
    return [name for name in asked if name not in served]
