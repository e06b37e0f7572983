"""Log-probabilities of labels after a prompt, each read from a request of its own.

A label's tokens follow the prompt, and their log-probabilities as a prompt's are summed. So a label
may have several tokens, and none has to be among the likeliest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builtin_plugins.routes.common.concurrency import gather_bounded
from builtin_plugins.routes.common.request_ids import engine_id
from builtin_plugins.routes.common.requests import final_output
from core.api import InvalidRequest, RequestOutput, SamplingParams
from core.api.serving import ServedEngine

MAX_READS = 1024
"""Largest number of labels in one request, over all its prompts."""


@dataclass(frozen=True, slots=True)
class LabelReads:
    """Log-probabilities of the labels of several prompts."""

    logprobs: list[list[float]]
    """By prompt and label."""
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int


def check_reads(num_reads: int) -> None:
    """Raise `InvalidRequest` for too many labels in one request, over all its prompts."""
    if num_reads > MAX_READS:
        raise InvalidRequest("body", f"asks for {num_reads} labels, at most {MAX_READS} are read.")


async def read_labels(
    engine: ServedEngine,
    prompts: Sequence[Sequence[int]],
    labels: Sequence[Sequence[Sequence[int]]],
    answer_id: str,
    options: Mapping[str, Any],
) -> LabelReads:
    """Return the log-probability of each prompt's labels. Raises `InvalidRequest`."""
    if engine.config.model.logprobs_mode != "raw_logprobs":
        raise InvalidRequest("model", "is not served so: this needs --logprobs-mode raw_logprobs.")
    check_reads(sum(map(len, labels)))
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)
    runs = (
        final_output(
            engine.generate(
                {"prompt_token_ids": [*prompt, *label]},
                params,
                engine_id(f"{answer_id}-{i}-{j}"),
                **options,
            )
        )
        for i, prompt in enumerate(prompts)
        for j, label in enumerate(labels[i])
    )
    outputs = iter(await gather_bounded(runs))
    found: list[list[float]] = []
    seen: list[RequestOutput] = []
    for each in labels:
        rows = [(label, next(outputs)) for label in each]
        found.append([_logprob(output, label) for label, output in rows])
        seen += [output for _, output in rows]
    return LabelReads(
        found,
        sum(map(len, prompts)),
        sum(output.num_cached_tokens or 0 for output in seen),
        sum(completion.num_tokens for output in seen for completion in output.outputs),
    )


def softmax(logprobs: Sequence[float]) -> list[float]:
    """Return the probabilities of labels among each other."""
    highest = max(logprobs)
    weights = [math.exp(each - highest) for each in logprobs]
    return [weight / sum(weights) for weight in weights]


def _logprob(output: RequestOutput, label: Sequence[int]) -> float:
    positions = (output.prompt_logprobs or [])[-len(label) :]
    return sum(
        position[token].logprob
        for position, token in zip(positions, label, strict=True)
        if position
    )
