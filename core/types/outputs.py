"""Outputs of generating requests; fields as in vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from core.errors import EngineError


@dataclass(slots=True)
class Logprob:
    """Log-probability of one token at one position."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None
    """Text that the token adds; U+FFFD for a part of a character."""
    token_bytes: bytes | None = None
    """Bytes that the token adds to the text."""


PositionLogprobs = dict[int, Logprob]
"""`Logprob` by token id: the sampled token and the most likely ones."""


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence of a request."""

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: Any = None
    num_tokens: int = 0
    """Number of tokens generated so far, also if `token_ids` holds only new ones."""
    special_spans: Sequence[tuple[int, int]] = ()
    """Character ranges of special tokens in `text`; empty when they are skipped."""

    def finished(self) -> bool:
        """Return whether this sequence has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request, in seconds of the engine's clock."""

    arrival_s: float = 0.0
    first_token_s: float | None = None
    last_token_s: float | None = None
    started_s: float | None = None
    """Time of the first step that computed it."""


@dataclass(slots=True)
class RequestOutput:
    """The output of a request, partial or final; fields as in vLLM."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: list[PositionLogprobs | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    lora_request: Any = None
    encoder_prompt: str | None = None
    encoder_prompt_token_ids: list[int] | None = None
    num_cached_tokens: int | None = None
    kv_transfer_params: dict[str, Any] | None = None
    error: str | None = field(default=None)
    """Error message of a request that failed inside the engine (finish_reason "error")."""
    refusal: EngineError | None = None
    """That error as an exception, if the request is invalid or can be retried."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """Counters of features for this request, for metrics."""
    trace: Any = None
    """Trace data of a feature, until the request's end."""
    output_log: Any = None
    """What the outputs are logged with at the request's end."""
    pooled: Any = None
    """Output of a pooling model (`core.types.pooling.Pooled`)."""


EXTRA_FIELDS: Final = frozenset(
    {
        "counts",
        "encoder_prompt",
        "encoder_prompt_token_ids",
        "kv_transfer_params",
        "lora_request",
        "output_log",
        "refusal",
        "trace",
    }
)
"""Fields of `RequestOutput` that features may set."""


def merge_extra_fields(fields: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extra fields of a request after one more sequence ended; counts are summed."""
    counts = dict(fields.get("counts") or {})
    for name, count in (new.get("counts") or {}).items():
        counts[name] = counts.get(name, 0.0) + count
    return {**fields, **new, "counts": counts}


def check_extra_fields(fields: Mapping[str, Any]) -> None:
    """Raise `TypeError` for a field that features must not set."""
    for name in fields:
        if name not in EXTRA_FIELDS:
            known = ", ".join(sorted(EXTRA_FIELDS))
            raise TypeError(
                f"{name!r} is no field of outputs for a feature to fill; there are {known}"
            )
