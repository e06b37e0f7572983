"""`--custom-histogram-buckets`: other bounds for families of histograms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from builtin_plugins.metric_sinks.prometheus.catalogue import MetricSpec
from core.api import ConfigError, did_you_mean

FLAG: Final = "--custom-histogram-buckets"
FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "request_latency": (
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_inference_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
    ),
    "time_to_first_token": ("time_to_first_token_seconds",),
    "inter_token_latency": (
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
    ),
    "iteration_tokens": ("iteration_tokens_total",),
    "request_params_n": ("request_params_n",),
    "request_tokens": (
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_max_num_generation_tokens",
        "request_params_max_tokens",
        "request_prefill_kv_computed_tokens",
    ),
}
"""Histograms by vLLM's family."""


def with_custom_buckets(
    specs: Iterable[MetricSpec], given: Mapping[str, Any] | None
) -> list[MetricSpec]:
    """Return the metrics with the given bounds.

    Raises `ConfigError` for a wrong family or bound.
    """
    bounds: dict[str, tuple[float, ...]] = {}
    for family, values in (given or {}).items():
        if family not in FAMILIES:
            hint = did_you_mean(family, FAMILIES)
            raise ConfigError(
                f"{FLAG}: got the family {family!r}; expected one of {', '.join(FAMILIES)}{hint}."
            )
        bounds |= dict.fromkeys(FAMILIES[family], _bounds(family, values))
    return [
        replace(spec, buckets=bounds[spec.name]) if spec.name in bounds else spec for spec in specs
    ]


def _bounds(family: str, values: Any) -> tuple[float, ...]:
    numbers = values if isinstance(values, list) else []
    valid = all(type(each) in (int, float) and 0 < each < math.inf for each in numbers)
    if not (numbers and valid and all(low < high for low, high in pairwise(numbers))):
        raise ConfigError(
            f"{FLAG}.{family}: got {values!r:.100}; expected ascending numbers above 0."
        )
    return tuple(float(each) for each in numbers)
