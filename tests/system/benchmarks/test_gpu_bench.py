"""The benchmarks of GPUs run to their ends without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import kernel_work, model_work, predict
from benchmarks.gpu.cards import CARDS

ROOT = Path(__file__).parents[3]


def last_lines(*arguments: str) -> list[str]:
    command = [sys.executable, *arguments, "--smoke"]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.splitlines()


@pytest.mark.slow
def test_toy_shapes_are_computed_and_nothing_is_timed() -> None:
    assert (
        last_lines("benchmarks/gpu/bench_kernels.py")[-1]
        == "decode, one long: computed, nothing is timed"
    )


@pytest.mark.slow
def test_every_workload_of_the_table_is_computed() -> None:
    heading, _, *rows = last_lines("benchmarks/gpu/roofline.py")
    assert heading == "| work | ms | limit, ms | predicted, ms | share | target | comparison |"
    assert all("| computed |" in row for row in rows)
    assert {row.split()[1] for row in rows} == {"W1", "W2a", "W3", "W4", "W5", "W6"}
    expected = predict.predictions(CARDS[0], CARDS[0].ceilings, kernel_work.TOY, model_work.TOY)
    assert {row.split(" | ")[0][2:] for row in rows} == {each.name for each in expected}


def test_predictions_are_above_their_limits_and_scale_with_the_card() -> None:
    first, second = (
        {each.name: each for each in predict.predictions(card, card.ceilings)} for card in CARDS[:2]
    )
    assert list(first) == list(second)
    assert all(each.seconds > each.limit_s for each in first.values())
    assert all(second[name].seconds <= first[name].seconds for name in first)


def test_nvfp4_is_predicted_for_cards_that_multiply_blocks() -> None:
    older, newer = (
        {each.name: each.seconds for each in predict.predictions(card, card.ceilings)}
        for card in CARDS[1:]
    )
    assert not [name for name in older if "NVFP4" in name]
    assert newer["W6 NVFP4, 4096 rows"] < newer["W6 FP8, rows, 4096 rows"]


def test_committed_predictions_are_those_of_the_model() -> None:
    text = predict.page()
    assert (ROOT / "benchmarks/gpu/predictions.md").read_text() == text
