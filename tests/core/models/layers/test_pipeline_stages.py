"""A pipeline stage takes its layers from a whole checkpoint, by the numbers they have there."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from core.model_spec.parallel import Pipeline
from core.models.layers.decoder import Decoder
from core.plugin import load_plan, make_plan
from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import plain_context, read_config


@pytest.mark.parametrize("architecture", ["DeciLMForCausalLM", "LlamaForCausalLM"])
def test_stages_share_the_tensors_of_a_checkpoint(architecture: str, tmp_path: Path) -> None:
    """DeciLM lacks layers of its checkpoint's numbering."""
    registry = load_plan(make_plan([]))
    known = {registered.entry.name: registered for registered in registry.entries("models")}
    folder = make_checkpoint(architecture, tmp_path, seed=1)
    tensors = load_file(folder / "model.safetensors")
    spec = registry.load(known[architecture])(read_config(folder))
    found: list[str] = []
    for rank in range(2):
        stage = Decoder(spec, plain_context(pipeline=Pipeline(2, rank)))
        stage.load_weights(tensors.items())
        found += stage.weight_shapes()
        assert {name for name in tensors if stage.weights.reads(name)} == {*stage.weight_shapes()}
    assert sorted(found) == sorted(tensors)


@pytest.mark.parametrize("architecture", ["DeepseekV4ForCausalLM", "Qwen4ExpForCausalLM"])
def test_stages_load_a_checkpoint_with_several_streams(architecture: str, tmp_path: Path) -> None:
    """The sum of the streams belongs to the last stage."""
    registry = load_plan(make_plan([]))
    known = {registered.entry.name: registered for registered in registry.entries("models")}
    folder = make_checkpoint(architecture, tmp_path, seed=1)
    tensors = load_file(folder / "model.safetensors")
    spec = registry.load(known[architecture])(read_config(folder))
    for rank in range(2):
        stage = Decoder(spec, plain_context(pipeline=Pipeline(2, rank)))
        stage.load_weights(tensors.items())
        assert (stage.stream_sum is None) == (rank == 0)
