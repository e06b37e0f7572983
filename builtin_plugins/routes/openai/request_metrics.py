"""The `metrics` of an answer: times of one request, and the acceptance of its draft tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api import RequestOutput

_PREFIX: Final = "spec_decode_num_"


def metrics_fields(output: RequestOutput, *, timing: bool, drafts: bool) -> dict[str, Any]:
    """Return the field `metrics` of an answer; empty if there is nothing to report.

    The names are vLLM's. Several sequences have no metrics, since their times differ.
    """
    metrics: dict[str, Any] = {}
    if timing:
        metrics |= _times(output)
    if drafts and (found := _acceptance(output.counts)):
        metrics["speculative_decoding"] = found
    return {"metrics": metrics} if metrics else {}


def _times(output: RequestOutput) -> dict[str, float | None]:
    """Return the times in milliseconds, and the tokens per second since the first step."""
    found = output.metrics
    if found is None:
        return {}
    num_tokens = sum(completion.num_tokens for completion in output.outputs)
    decode_ms = _ms(found.first_token_s, found.last_token_s)
    total_ms = _ms(found.started_s, found.last_token_s)
    return {
        "time_to_first_token_ms": _ms(found.started_s, found.first_token_s),
        "generation_time_ms": decode_ms,
        "queue_time_ms": _ms(found.arrival_s, found.started_s),
        "mean_itl_ms": decode_ms / (num_tokens - 1) if decode_ms and num_tokens > 1 else None,
        "tokens_per_second": num_tokens / total_ms * 1000 if total_ms else None,
    }


def _ms(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else max(0.0, end_s - start_s) * 1000


def _acceptance(counts: Mapping[str, float]) -> dict[str, Any]:
    """Return the acceptance of draft tokens; empty without any."""
    num_steps = int(counts.get(f"{_PREFIX}drafts", 0))
    num_drafted = int(counts.get(f"{_PREFIX}draft_tokens", 0))
    if not num_steps or not num_drafted:
        return {}
    num_accepted = int(counts.get(f"{_PREFIX}accepted_tokens", 0))
    at_least = [num_steps]
    while (position := f"{_PREFIX}accepted_tokens_per_pos/{len(at_least) - 1}") in counts:
        at_least.append(int(counts[position]))
    return {
        "mean_acceptance_length": 1 + num_accepted / num_steps,
        "draft_acceptance_rate": num_accepted / num_drafted,
        "acceptance_histogram": [
            count - following for count, following in zip(at_least, [*at_least[1:], 0], strict=True)
        ],
        "num_spec_steps": num_steps,
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_drafted,
    }
