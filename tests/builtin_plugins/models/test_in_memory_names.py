"""MoE checkpoints with transformers' in-memory names, as some tools write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from core.testing.one_sequence import Session

MIXTURES = [
    "DeepseekV3ForCausalLM",
    "Lfm2MoeForCausalLM",
    "MiniMaxForCausalLM",
    "MiniMaxM2ForCausalLM",
    "MixtralForCausalLM",
    "PhimoeForCausalLM",
    "Qwen3MoeForCausalLM",
]
IDS = list(range(100, 133))


def one_by_one(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the same with three tensors for each expert."""
    out = {}
    for name, tensor in state.items():
        stem, _, last = name.rpartition(".")
        if not stem.endswith(".experts"):
            out[name] = tensor
            continue
        for expert, own in enumerate(tensor):
            halves = (
                zip(("gate_proj", "up_proj"), own.chunk(2), strict=True)
                if last == "gate_up_proj"
                else [(last, own)]
            )
            out |= {f"{stem}.{expert}.{matrix}.weight": part for matrix, part in halves}
    return out


@pytest.mark.parametrize("architecture", MIXTURES)
def test_in_memory_expert_names_are_loaded(
    architecture: str, checkpoint: Callable[[str], Path], load: Callable[..., Any]
) -> None:
    folder = checkpoint(architecture)
    decoder = load(architecture, folder)
    expected = Session(decoder).step(IDS)
    model = getattr(transformers, architecture).from_pretrained(folder)
    state = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if not name.endswith("rotary_emb.inv_freq")
    }
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    assert any(name.endswith(".experts.gate_up_proj") for name in state)
    for found in (state, one_by_one(state)):
        for parameter in decoder.parameters():
            parameter.data.fill_(torch.nan)
        decoder.load_weights(found.items())
        assert torch.equal(Session(decoder).step(IDS), expected)
