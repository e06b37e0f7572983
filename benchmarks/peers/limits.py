"""Minimum time of a task, from the machine's read bandwidth and product rate.

A step takes at least max(weights / bandwidth, FLOP / rate) + KV reads / bandwidth. All prompts are
one step; each further token of all requests is one step. Shared prefixes are computed and read
once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.peers.work import Task, figures


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a machine."""

    read_bytes_s: float
    flop_s: float


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a dense model."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the sizes of a checkpoint in transformers' format."""
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        heads = config["num_attention_heads"]
        return cls(
            config["num_hidden_layers"],
            config["hidden_size"],
            config["intermediate_size"],
            heads,
            config["num_key_value_heads"],
            config.get("head_dim") or config["hidden_size"] // heads,
            config["vocab_size"],
        )

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """Return rows and columns of the linear layers of a layer."""
        width = self.heads * self.head_dim
        return {
            "qkv": (width + 2 * self.kv_heads * self.head_dim, self.hidden),
            "out": (self.hidden, width),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }

    @property
    def layer_weights(self) -> int:
        """Return the number of weights in the linear layers of all layers."""
        return self.layers * sum(rows * columns for rows, columns in self.products.values())

    @property
    def head_weights(self) -> int:
        """Return the number of weights of the head."""
        return self.vocab * self.hidden

    def weight_bytes(self, bits: int = 16) -> float:
        """Return the bytes that a step reads at a number of bits, without scales."""
        return (self.layer_weights + self.head_weights) * bits / 8

    @property
    def kv_bytes(self) -> int:
        """Return the KV bytes of a position at 16 bits."""
        return self.layers * 2 * self.kv_heads * self.head_dim * 2


def step_s(
    shape: Shape,
    rates: Rates,
    bits: int,
    *,
    rows: int,
    sampled: int,
    pairs: float,
    positions: float,
) -> float:
    """Return the minimum time of a step by rows, (query, key) pairs and read positions."""
    linear = 2 * (shape.layer_weights * rows + shape.head_weights * sampled)
    attention = 4 * pairs * shape.heads * shape.head_dim * shape.layers
    computing_s = (linear + attention) / rates.flop_s
    reading_s = shape.weight_bytes(bits) / rates.read_bytes_s
    return max(reading_s, computing_s) + positions * shape.kv_bytes / rates.read_bytes_s


def prefill_s(task: Task, shape: Shape, rates: Rates, bits: int) -> float:
    """Return the minimum time until every request has its first token."""
    own = task.prompt * task.shared + task.prompt**2 / 2
    pairs = task.shared**2 / 2 + task.requests * own
    rows = task.shared + task.requests * task.prompt
    return step_s(shape, rates, bits, rows=rows, sampled=task.requests, pairs=pairs, positions=0)


def task_s(task: Task, shape: Shape, rates: Rates, bits: int) -> float:
    """Return the minimum time of a whole task."""
    total = prefill_s(task, shape, rates, bits)
    for generated in range(1, task.output):
        own = task.requests * (task.prompt + generated)
        total += step_s(
            shape,
            rates,
            bits,
            rows=task.requests,
            sampled=task.requests,
            pairs=own + task.requests * task.shared,
            positions=own + task.shared,
        )
    return total


def limit_figures(task: Task, shape: Shape, rates: Rates, bits: int = 16) -> dict[str, float]:
    """Return the best possible figures of a task."""
    first_s = prefill_s(task, shape, rates, bits) if task.first_alone else None
    return figures(task, task_s(task, shape, rates, bits), first_s)
