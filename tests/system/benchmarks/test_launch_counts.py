"""Decode steps launch no more than the committed table says, on a fake GPU."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.gpu.cards import CARDS
from benchmarks.gpu.counting_gpu import Launch
from benchmarks.gpu.launch_table import committed
from benchmarks.gpu.launches import decode_step, summary
from benchmarks.gpu.time_model import Batch, layer_works
from benchmarks.peers.limits import Shape

ROWS = committed()
FAST = ("LlamaForCausalLM",)
DENSE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
MAX_DENSE_LAUNCHES = 8
"""Two norms, four products, one of them with its activation, RoPE with the cache's write, and
attention with the merge of its partial sums.
"""


@cache
def step_of(architecture: str) -> list[Launch]:
    """Return the launches of a decode step, counted once."""
    return decode_step(architecture)


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in ROWS],
)
def test_decode_step_launches_no_more_than_its_row(architecture: str) -> None:
    found = summary(step_of(architecture))
    known = ROWS[architecture]
    assert max(found.layers) <= max(known.layers)
    assert found.model <= known.model
    assert found.outside <= known.outside
    assert found.step <= known.step


def test_time_model_has_the_launches_of_a_layer() -> None:
    products = ("mm", "linear", "addmm")
    counted = sorted(
        "product" if launch.name in products else launch.name
        for launch in step_of("LlamaForCausalLM")
        if launch.place == "layer 1"
    )
    shape = Shape(2, 64, 96, 4, 2, 16, 300)
    works = layer_works(shape, Batch(2, 2, 10, 5, 0.0), CARDS[0].processors)
    assert counted == sorted(work.kernel for work in works)


def test_dense_layers_fuse_norms_rope_and_activations() -> None:
    assert all(max(ROWS[name].layers) <= MAX_DENSE_LAUNCHES for name in DENSE)
