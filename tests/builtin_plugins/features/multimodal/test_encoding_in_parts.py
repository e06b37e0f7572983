"""An item that is encoded in parts: the same embeddings, and a stop after each part."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from builtin_plugins.features.multimodal.encoding_in_parts import EncodingInParts, layers_of
from core.model_spec.tower import EncodedItem

NUM_LAYERS = 6


class Tower(nn.Module):
    """Layers that count their runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(NUM_LAYERS))
        self.ran: list[str] = []
        for layer in self.layers:
            layer.register_forward_hook(lambda *_: self.ran.append(threading.current_thread().name))

    def encode(self) -> EncodedItem:
        x = torch.ones(3, 4)
        for layer in self.layers:
            x = layer(x).relu()
        return EncodedItem(x)


@pytest.mark.parametrize("num_parts", [1, 2, 4, 6, 9])
def test_each_part_runs_its_share_of_the_layers(num_parts: int) -> None:
    tower = Tower()
    expected = tower.encode().embeddings
    tower.ran.clear()
    running = EncodingInParts(b"", tower.encode, layers_of(tower))
    for part in range(1, num_parts):
        running.advance(part, num_parts)
        assert len(tower.ran) == -(-NUM_LAYERS * part // num_parts)
    assert torch.equal(running.finish().embeddings, expected)
    assert len(tower.ran) == NUM_LAYERS


def test_other_runs_of_the_same_tower_are_not_stopped() -> None:
    tower = Tower()
    running = EncodingInParts(b"", tower.encode, layers_of(tower))
    running.advance(1, 3)
    expected = tower.encode().embeddings
    assert torch.equal(running.finish().embeddings, expected)


def test_error_of_a_tower_is_raised_where_its_item_is_needed() -> None:
    tower = Tower()

    def failing() -> EncodedItem:
        tower.encode()
        raise ValueError("broken")

    running = EncodingInParts(b"", failing, layers_of(tower))
    running.advance(1, 2)
    running.advance(2, 2)
    with pytest.raises(ValueError, match="broken"):
        running.finish()


def test_cancelled_run_ends_its_thread() -> None:
    tower = Tower()
    before = threading.active_count()
    running = EncodingInParts(b"", tower.encode, layers_of(tower))
    running.advance(1, 2)
    running.cancel()
    assert threading.active_count() == before
    assert len(tower.ran) == NUM_LAYERS // 2


def test_tower_without_modules_is_encoded_at_once() -> None:
    item = EncodedItem(torch.ones(1, 1))
    running = EncodingInParts(b"", lambda: item, layers_of(object()))
    running.advance(1, 2)
    assert running.finish() is item
