"""Positions of steps with M-RoPE: prompts by their table, generated tokens by a shift."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from builtin_plugins.features.multimodal.item_rows import ItemRow, Segment
from builtin_plugins.features.multimodal.worker import set_positions
from core.model_spec.tower import RopePositions

PROMPT = torch.tensor([[0, 1, 1, 1, 4], [0, 1, 1, 2, 4], [0, 1, 2, 1, 4]])


def row(shift: int, positions: torch.Tensor = PROMPT) -> ItemRow:
    new: Any = SimpleNamespace(prompt_len=positions.shape[1])
    return ItemRow(new, None, RopePositions(positions, shift))  # type: ignore[arg-type]


def step(*positions: int) -> Any:
    return SimpleNamespace(positions=torch.tensor(positions), rope_positions=None)


def test_generated_tokens_have_one_shifted_position() -> None:
    batch = step(9, 7, 12)
    set_positions(batch, [Segment(row(-2), 7, 1, 1), Segment(row(-1), 12, 1, 2)])
    assert batch.rope_positions is None
    assert batch.positions.tolist() == [9, 5, 11]


def test_prompts_have_the_positions_of_their_table_and_text_its_own() -> None:
    batch = step(8, 2, 3, 4, 5, 6)
    set_positions(batch, [Segment(row(-1), 2, 5, 1)])
    assert batch.rope_positions.tolist() == [
        [8, 1, 1, 4, 4, 5],
        [8, 1, 2, 4, 4, 5],
        [8, 2, 1, 4, 4, 5],
    ]
    assert batch.positions.tolist() == [8, 2, 3, 4, 5, 6]


def test_positions_after_the_table_of_angles_are_computed() -> None:
    batch = step(5, 6)
    set_positions(batch, [Segment(row(3), 5, 2, 0)])
    assert batch.rope_positions.tolist() == [[8, 9]] * 3
