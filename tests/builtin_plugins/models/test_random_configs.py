"""Random configs of every served type: equal to transformers, or refused by a field's name."""

from __future__ import annotations

import json

import pytest

from benchmarks.models.sweep import draw_outcome, names
from core.testing.random_configs import merge

SEEDS = range(2)
FAST = ("BertModel", "DeepseekV3ForCausalLM", "LlamaForCausalLM", "T5ForConditionalGeneration")


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(name, seed, marks=[] if name in FAST and not seed else pytest.mark.slow)
        for name in names()
        for seed in SEEDS
    ],
)
def test_random_configs_do_not_differ_from_transformers(name: str, seed: int) -> None:
    outcome, groups = draw_outcome(name, seed)
    assert outcome.kind != "differs", f"{outcome.detail} {json.dumps(merge(groups), default=str)}"
    if name in FAST:
        assert outcome.kind == "equal"
