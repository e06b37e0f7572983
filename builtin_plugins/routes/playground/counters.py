"""Counters of the playground: KV blocks, plugin faults, totals, and numbers of recent answers."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from typing import Any, Final

import msgspec

from builtin_plugins.metric_sinks.api import plugin_faults
from builtin_plugins.routes.common.costs import cost_fields
from builtin_plugins.routes.playground.offer import NAME
from core.api import EngineConfig, InvalidRequest, Registry
from core.api.telemetry import RequestStats, StepStats, TokenStats

MAX_ANSWERS: Final = 200
"""Largest number of ended answers that are remembered."""
_RANDOM_ID: Final = re.compile(r"(chatcmpl-[0-9a-f]{32})-[0-9a-f]+")
"""Random id of an answer, with the suffix of the engine; it cannot be guessed."""


class BlockCounter:
    """Scheduler extension that counts KV blocks on request."""

    name = NAME
    decides = False

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def attach(self, scheduler: Any) -> None:
        """Store the KV manager."""
        self._kv = scheduler.kv

    def call(self, verb: str, data: bytes) -> bytes:
        """Return blocks by state, their size, and faults by plugin, as JSON."""
        if verb != "blocks":
            raise InvalidRequest("name", f"{NAME} knows blocks, not {verb!r}.")
        return msgspec.json.encode(
            {
                "blocks": count_blocks(self._kv),
                "block_size": self._kv.layout.hash_block_size,
                "faults": plugin_faults(self._registry),
            }
        )


def count_blocks(kv: Any) -> dict[str, int]:
    """Return the number of used, cached and free blocks; cached blocks are not in use.

    Takes some milliseconds for a million blocks.
    """
    used = cached = idle = 0
    for index, pool in enumerate(kv.pools):
        refs = pool.refs
        used += len(refs) - refs.count(0)
        idle += pool.num_free
        groups = (i for i, group in enumerate(kv.layout.groups) if group.pool == index)
        for group in groups:
            cached += sum(not refs[block] for block in pool.cached_blocks(group).values())
    return {"used": used, "cached": cached, "free": idle - cached}


_FAILED: Final = ("abort", "error")


class Totals:
    """Metric sink that sums up steps, tokens and requests since the start.

    It also remembers the numbers of recent answers, by an id that only their clients know.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._steps = self._computed_tokens = self._prompt_tokens = self._cached_tokens = 0
        self._generated_tokens = self._preemptions = self._ended = self._failed = 0
        self._step_s = 0.0
        self._last_steps: dict[int, StepStats] = {}
        self._generated_by: Counter[int] = Counter()
        self._answers: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def step(self, stats: StepStats) -> None:
        """Add one engine step; one without time is not counted."""
        self._last_steps[stats.engine] = stats
        self._steps += bool(stats.step_s)
        self._step_s += stats.step_s
        self._computed_tokens += stats.computed_tokens
        self._preemptions += stats.preemptions

    def tokens(self, stats: TokenStats) -> None:
        """Add the tokens of one step."""
        self._generated_tokens += stats.generated_tokens
        self._generated_by[stats.engine] += stats.generated_tokens
        self._prompt_tokens += stats.prompt_tokens
        self._cached_tokens += stats.cached_tokens

    def request(self, stats: RequestStats) -> None:
        """Add one ended request."""
        self._ended += 1
        self._failed += stats.finish_reason in _FAILED
        found = _RANDOM_ID.fullmatch(stats.request_id)
        if found is not None:
            self._answers[found[1]] = _numbers(stats)
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)

    def answer(self, answer_id: str) -> dict[str, Any] | None:
        """Return sizes and times of an ended answer; None if it is unknown."""
        return self._answers.get(answer_id)

    def of_engine(self, rank: int) -> dict[str, int]:
        """Return the requests of an engine now, and its generated tokens since the start."""
        last = self._last_steps.get(rank)
        return {
            "running": last.num_running if last is not None else 0,
            "waiting": last.num_waiting if last is not None else 0,
            "generated_tokens": self._generated_by[rank],
        }

    def as_json(self) -> dict[str, Any]:
        """Return the totals by name; times are in seconds."""
        return {
            "steps": self._steps,
            "step_s": self._step_s,
            "computed_tokens": self._computed_tokens,
            "prompt_tokens": self._prompt_tokens,
            "cached_tokens": self._cached_tokens,
            "generated_tokens": self._generated_tokens,
            "preemptions": self._preemptions,
            "ended_requests": self._ended,
            "failed_requests": self._failed,
        }


def _numbers(stats: RequestStats) -> dict[str, Any]:
    """Return what the page shows of a request; times are in seconds."""
    return {
        "finish_reason": stats.finish_reason,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "generated_tokens": stats.generated_tokens,
        "queue_s": stats.queue_s,
        "prefill_s": stats.prefill_s,
        "decode_s": stats.decode_s,
        "e2e_s": stats.e2e_s,
        "drafted": int(stats.counts.get("spec_decode_num_draft_tokens", 0)),
        "accepted": int(stats.counts.get("spec_decode_num_accepted_tokens", 0)),
        "engine": stats.engine,
        **cost_fields(stats.counts),
    }
