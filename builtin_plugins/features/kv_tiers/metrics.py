"""Metrics of KV tiers: state, block counts and size of each, and the state of the worst."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from builtin_plugins.features.kv_tiers.circuit_breaker import CircuitBreaker
from builtin_plugins.features.kv_tiers.reads import BlockReads
from builtin_plugins.features.kv_tiers.tier_index import TierIndex
from builtin_plugins.features.kv_tiers.writes import BlockWrites
from builtin_plugins.metric_sinks.api import with_label

WORST_FIRST: Final = ("degraded", "opening", "ready")


@dataclass(frozen=True, slots=True)
class TierCounts:
    """Block counts since the start."""

    stored: int
    loaded: int
    store_failures: int
    """Blocks that could not be stored."""
    load_failures: int
    """Blocks that could not be loaded, or did not match their checksum."""
    evicted: int


class TierStatus:
    """State and counts of one tier."""

    def __init__(
        self,
        connector: str,
        index: TierIndex,
        writes: BlockWrites,
        reads: BlockReads,
        breakers: Callable[[], Sequence[CircuitBreaker]],
        is_open: Callable[[], bool],
    ) -> None:
        """`breakers`: returns all circuit breakers of the tier. `is_open`: all stores are ready."""
        self.connector = connector
        self._index = index
        self._writes = writes
        self._reads = reads
        self._breakers = breakers
        self._is_open = is_open

    @property
    def counts(self) -> TierCounts:
        """Block counts since the start."""
        return TierCounts(
            stored=self._writes.num_stored,
            loaded=self._reads.num_loaded,
            store_failures=self._writes.num_failures,
            load_failures=self._reads.num_failures,
            evicted=self._index.num_evicted,
        )

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that requests got from the tier."""
        return self._reads.hit_tokens

    @property
    def missed_tokens(self) -> int:
        """Prompt tokens of ended requests that neither the device nor a tier had."""
        return self._reads.missed_tokens

    def info(self) -> Mapping[str, str]:
        """Return the info labels: connector, state and the reason of a failure."""
        degraded = self._degraded()
        if degraded:
            state = "degraded"
        else:
            state = "ready" if self._is_open() else "opening"
        reason = degraded[0].public_reason if degraded else ""
        return {"connector": self.connector, "state": state, "reason": reason}

    def numbers(self) -> Mapping[str, float]:
        """Return the tier's counters and gauges, by metric."""
        counts = self.counts
        directory = self._index.directory
        return {
            "kv_connector_stored_blocks_total": float(counts.stored),
            "kv_connector_loaded_blocks_total": float(counts.loaded),
            "kv_connector_store_failures_total": float(counts.store_failures),
            "kv_connector_load_failures_total": float(counts.load_failures),
            "kv_connector_evicted_blocks_total": float(counts.evicted),
            "kv_connector_hit_tokens_total": self._reads.hit_tokens,
            "kv_connector_degraded": bool(self._degraded()),
            "kv_connector_bytes": directory.num_bytes,
            "kv_connector_limit_bytes": directory.capacity_bytes,
        }

    def _degraded(self) -> list[CircuitBreaker]:
        return [breaker for breaker in self._breakers() if breaker.is_degraded]


class Tier(Protocol):
    """Any object with a tier's status."""

    @property
    def status(self) -> TierStatus:
        """State and counts of the tier."""


class TierMetrics:
    """Metric provider of all tiers, in lookup order."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self._tiers = tiers

    def info(self) -> Mapping[str, str]:
        """Return the info labels: all connectors, and the worst state with its reason."""
        infos = [tier.status.info() for tier in self._tiers]
        worst = min(infos, key=lambda info: WORST_FIRST.index(info["state"]))
        return {**worst, "connector": ", ".join(info["connector"] for info in infos)}

    def numbers(self) -> Mapping[str, float]:
        """Return vLLM's numbers of all tiers, and those of each by metric and `tier` label.

        Tiers are looked up for the tokens that the device has not: those found, and those missed.
        """
        found = sum(tier.status.hit_tokens for tier in self._tiers)
        missed = max(tier.status.missed_tokens for tier in self._tiers)
        numbers = {
            "external_prefix_cache_hits_total": float(found),
            "external_prefix_cache_queries_total": float(found + missed),
        }
        num_same = Counter[str]()
        for tier in self._tiers:
            connector = tier.status.connector
            num_same[connector] += 1
            label = connector
            if num_same[connector] > 1:
                label = f"{connector} {num_same[connector]}"
            for metric, value in tier.status.numbers().items():
                numbers[with_label(metric, "tier", label)] = value
        return numbers
