"""Inkling: rows that pad the head, queries in pieces, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from core.errors import ConfigError, ModelError
from core.model_spec.kv import IndexKeys, SlidingRows
from core.models.layers import query_batches
from core.testing.checkpoints import VOCAB, make_checkpoint
from core.testing.one_sequence import Session, read_config

FIRST = "InklingForCausalLM"
SECOND = "Inkling2ForCausalLM"
PADDING = 12


@pytest.mark.parametrize("architecture", [FIRST, SECOND])
def test_rows_that_pad_the_head_are_never_sampled(
    architecture: str,
    tmp_path: Path,
    load: Callable[..., Any],
    by_transformers: Callable[[Path], Any],
) -> None:
    size = VOCAB - PADDING
    folder = make_checkpoint(architecture, tmp_path, seed=2, unpadded_vocab_size=size)
    ids = list(range(40))
    with torch.inference_mode():
        expected = by_transformers(folder)(torch.tensor([ids])).logits[0].log_softmax(-1)
    found = Session(load(architecture, folder)).step(ids)
    assert expected.shape[-1] == size
    assert (found[:, :size] - expected).abs().max() < 1e-4
    assert bool((found[:, size:] == float("-inf")).all())


@pytest.mark.parametrize("architecture", [FIRST, SECOND])
def test_queries_in_pieces_have_the_same_output(
    architecture: str,
    checkpoint: Callable[[str], Path],
    load: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = load(architecture, checkpoint(architecture))
    ids = list(range(50))
    whole = Session(decoder).step(ids)
    monkeypatch.setattr(query_batches, "MAX_SCORES", 8 * 50 * 7)
    pieces = Session(decoder).step(ids)
    assert (whole - pieces).abs().max() < 1e-4


def test_full_layers_cache_every_token_and_sliding_ones_a_window(
    checkpoint: Callable[[str], Path], load: Callable[..., Any]
) -> None:
    specs = {layer.name: layer.spec for layer in load(FIRST, checkpoint(FIRST)).kv_layers}
    assert isinstance(specs["model.layers.1"], IndexKeys)
    windows = {name: spec.window for name, spec in specs.items() if isinstance(spec, SlidingRows)}
    assert windows["model.layers.0"] == 24
    assert windows["model.layers.1.recent"] == 4


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        (FIRST, {"shared_expert_sink": False}, "shared_expert_sink in config.json: got False"),
        (FIRST, {"num_key_value_heads": 3}, "num_key_value_heads: got 3; expected a divisor of 4"),
        (SECOND, {"scoring_func": "softmax"}, "scoring_func in config.json: got 'softmax'"),
    ],
)
def test_wrong_fields_are_refused_by_name(
    architecture: str,
    fields: dict[str, Any],
    message: str,
    checkpoint: Callable[[str], Path],
    spec_of: Callable[[str, Any], Any],
) -> None:
    given = json.loads((checkpoint(architecture) / "config.json").read_text())
    with pytest.raises(ModelError, match=message):
        spec_of(architecture, SimpleNamespace(**{**given, **fields}))


def test_stages_that_read_earlier_blocks_are_not_split(
    checkpoint: Callable[[str], Path], spec_of: Callable[[str, Any], Any]
) -> None:
    spec_of(FIRST, read_config(checkpoint(FIRST))).check_split(2, 2)
    with pytest.raises(ConfigError, match="--pipeline-parallel-size 2 would part layers"):
        spec_of(SECOND, read_config(checkpoint(SECOND))).check_split(1, 2)
