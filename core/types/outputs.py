"""What users get of a generating request; fields as in vLLM."""

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


PositionLogprobs = dict[int, Logprob]
"""Token id to `Logprob`: the chosen token and the best ones."""


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
    """Tokens generated so far, also where `token_ids` holds only the newest."""
    special_spans: Sequence[tuple[int, int]] = ()
    """Where in `text` special tokens are spelled; empty where they are skipped."""

    def finished(self) -> bool:
        """Say whether this sequence has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request, in seconds of the engine's clock."""

    arrival_s: float = 0.0
    first_token_s: float | None = None
    last_token_s: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """What a request has produced so far (or in the end); fields as in vLLM."""

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
    """Why the request failed inside the engine, where it did (finish_reason "error")."""
    refusal: EngineError | None = None
    """The same as an exception, where the request's own contents are at fault (`InvalidRequest`) or
    it can be sent again later.
    """
    counts: Mapping[str, float] = field(default_factory=dict)
    """What features counted of the request, for metrics."""
    trace: Any = None
    """What a feature that traces requests keeps of it until its end."""
    pooled: Any = None
    """What a pooling model made of the prompt (`core.types.pooling.Pooled`)."""


FILLED_BY_FEATURES: Final = frozenset(
    {
        "counts",
        "encoder_prompt",
        "encoder_prompt_token_ids",
        "kv_transfer_params",
        "lora_request",
        "refusal",
        "trace",
    }
)
"""Fields of `RequestOutput` that whoever completes requests may set."""


def joined(shown: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what features show of a request once one more of its sequences has ended: counts are
    summed.
    """
    counts = dict(shown.get("counts") or {})
    for name, count in (found.get("counts") or {}).items():
        counts[name] = counts.get(name, 0.0) + count
    return {**shown, **found, "counts": counts}


def check_filled(shown: Mapping[str, Any]) -> None:
    """Raise `TypeError` for a field that is not a feature's to fill."""
    for name in shown:
        if name not in FILLED_BY_FEATURES:
            known = ", ".join(sorted(FILLED_BY_FEATURES))
            raise TypeError(
                f"{name!r} is no field of outputs for a feature to fill; there are {known}"
            )
