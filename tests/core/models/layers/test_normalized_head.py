"""Heads with a weight that is normalised when it is loaded (Baichuan 2, Ling)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file

from builtin_plugins.models import llama
from core.errors import ModelError
from core.models.layers.decoder import Decoder
from core.models.layers.weights import WeightMap
from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import Session, plain_context, read_config

IDS = list(range(20, 40))


@pytest.mark.parametrize(("vectors", "axis"), [("rows", 1), ("columns", 0)])
def test_normalized_head_equals_one_stored_with_length_1(
    vectors: Literal["rows", "columns"], axis: int, tmp_path: Path
) -> None:
    folder = make_checkpoint("LlamaForCausalLM", tmp_path, seed=1)
    tensors = load_file(folder / "model.safetensors")
    spec = llama.spec(read_config(folder))
    changed = Decoder(replace(spec, head_normalized=vectors), plain_context())
    changed.load_weights(tensors.items())
    head = tensors["lm_head.weight"]
    stored = {**tensors, "lm_head.weight": head / head.norm(dim=axis, keepdim=True)}
    plain = Decoder(spec, plain_context())
    plain.load_weights(stored.items())
    torch.testing.assert_close(Session(changed).step(IDS), Session(plain).step(IDS))
    changed.update_weights([("lm_head.weight", 2 * head)])
    torch.testing.assert_close(Session(changed).step(IDS), Session(plain).step(IDS))


def test_weight_that_is_stored_otherwise_cannot_be_changed() -> None:
    with pytest.raises(ModelError, match=r"lm_head\.weight: expected a plain weight"):
        WeightMap().change("lm_head.weight", torch.neg)
