"""Tasks of the comparison: seeded prompts of token ids, and figures from their times."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

TOKENS: Final = range(300, 31_000)
"""Token ids of prompts: no special tokens of a 32,000 vocabulary."""

FIRST_MS: Final = "first token, ms"
"""Figure for which lower is better."""


@dataclass(frozen=True, slots=True)
class Task:
    """Requests of one kind, all sent at the start; each generates exactly `output` tokens."""

    key: str
    about: str
    requests: int
    prompt: int
    """Number of prompt tokens specific to each request."""
    output: int
    shared: int = 0
    """Number of shared prefix tokens."""
    first_alone: bool = False
    """Whether the first token is also measured alone, to get the decode time."""


TASKS: Final[Mapping[str, Task]] = MappingProxyType(
    {
        task.key: task
        for task in (
            Task("a", "32 requests, 128 in, 64 out", 32, 128, 64),
            Task("b", "8 requests, 1024 in, 32 out", 8, 1024, 32),
            Task("c", "32 requests, 512 shared + 32 in, 32 out", 32, 32, 32, shared=512),
            Task("d", "1 request, 128 in, 128 out", 1, 128, 128, first_alone=True),
            Task("e", "16 requests, 128 in, 64 out", 16, 128, 64, first_alone=True),
            Task("p", "1 request, 1024 in, 1 out", 1, 1024, 1),
        )
    }
)
WARM_UP: Final = Task("warm", "4 requests, 64 in, 8 out", 4, 64, 8)


def make_prompts(task: Task, seed: int) -> list[list[int]]:
    """Return the prompts of a task.

    Different seeds share no prefix, so prefix caches do not help.
    """
    source = random.Random(f"{task.key} {seed}")
    shared = source.choices(TOKENS, k=task.shared)
    return [shared + source.choices(TOKENS, k=task.prompt) for _ in range(task.requests)]


def figures(task: Task, whole_s: float, first_s: float | None = None) -> dict[str, float]:
    """Return the figures of a task from its times, by name."""
    if first_s is not None:
        decoded = task.requests * (task.output - 1)
        rate = decoded / max(whole_s - first_s, 1e-9)
        return (
            {FIRST_MS: 1e3 * first_s, "decode, tokens/s": rate}
            if task.requests == 1
            else {"decode, tokens/s": rate}
        )
    if task.output == 1:
        return {"prompt tokens/s": task.requests * (task.shared + task.prompt) / whole_s}
    return {"tokens/s": task.requests * task.output / whole_s}
