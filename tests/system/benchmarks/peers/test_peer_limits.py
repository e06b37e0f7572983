"""The least time of a task, against sums made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers.limits import Rates, Shape, limit_figures, prefill_s, step_s, task_s
from benchmarks.peers.work import FIRST_MS, TASKS, Task

QWEN = Shape(
    layers=28, hidden=1024, intermediate=3072, heads=16, kv_heads=8, head_dim=128, vocab=32_000
)
NO_LIMIT = 1e30


def test_a_checkpoint_says_its_shape(tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 28,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 32_000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert Shape.read(tmp_path) == QWEN
    (tmp_path / "config.json").write_text(json.dumps(config | {"head_dim": None}))
    assert Shape.read(tmp_path) == replace(QWEN, head_dim=64)


def test_weights_and_positions_have_the_bytes_that_are_known_of_the_model() -> None:
    assert QWEN.weight_bytes() == pytest.approx(
        946_470_912, rel=1e-3
    )  # the file, which has norms as well
    assert QWEN.weight_bytes(4) == QWEN.weight_bytes() / 4
    assert QWEN.kv_bytes == 114_688


def test_one_stream_is_bound_by_reading_weights_and_cache() -> None:
    rates = Rates(read_bytes_s=1e9, flop_s=NO_LIMIT)
    step = step_s(QWEN, rates, 16, rows=1, sampled=1, pairs=100, positions=100)
    assert step == pytest.approx((QWEN.weight_bytes() + 100 * QWEN.kv_bytes) / 1e9)


def test_a_prompt_is_bound_by_products() -> None:
    rates = Rates(read_bytes_s=NO_LIMIT, flop_s=1e9)
    linear = 2 * (QWEN.layer_weights * 1024 + QWEN.head_weights)
    attention = 2 * 1024**2 * QWEN.heads * QWEN.head_dim * QWEN.layers
    assert prefill_s(TASKS["p"], QWEN, rates, 16) == pytest.approx((linear + attention) / 1e9)


def test_what_prompts_share_is_computed_and_read_once() -> None:
    whole = Task("x", "", 1, 512, 2)
    shared = Task("x", "", 1, 32, 2, shared=480)
    assert task_s(shared, QWEN, Rates(1e9, 1e11), 16) == pytest.approx(
        task_s(whole, QWEN, Rates(1e9, 1e11), 16)
    )
    many = replace(shared, requests=8)
    reading = Rates(read_bytes_s=1e9, flop_s=NO_LIMIT)
    more = task_s(many, QWEN, reading, 16) - task_s(shared, QWEN, reading, 16)
    assert more == pytest.approx(7 * 33 * QWEN.kv_bytes / 1e9)


def test_twice_the_machine_gives_twice_the_figures() -> None:
    for task in TASKS.values():
        slow, fast = (limit_figures(task, QWEN, Rates(n * 1e10, n * 1e11)) for n in (1, 2))
        for name in slow:
            assert fast[name] / slow[name] == pytest.approx(0.5 if name == FIRST_MS else 2.0)
