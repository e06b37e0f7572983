"""A rank copies only its own shard; tensors of other stages are skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from core.errors import ModelError
from core.model_spec.parallel import ParallelGroup, Pipeline
from core.models.layers.decoder import Decoder
from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import plain_context, read_config
from tests.core.models.layers.test_tensor_parallel import find_spec


class Written(TorchDispatchMode):
    """Counts the bytes that operations write: copies and new tensors."""

    num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not isinstance(out, torch.Tensor):
            return out
        made = not any(
            isinstance(x, torch.Tensor)
            and x.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
            for x in args
        )
        if made or "copy_" in func.__name__:
            self.num_bytes += out.nbytes
        return out


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("architecture", "module"),
    [
        ("LlamaForCausalLM", "llama:spec"),
        ("MixtralForCausalLM", "mistral:mixtral"),
        ("GPT2LMHeadModel", "gpt2:spec"),
        ("GPTNeoXForCausalLM", "gpt_like:gpt_neox"),
        ("Phi3ForCausalLM", "phi3:phi3"),
    ],
)
def test_rank_copies_only_its_own_shard(
    architecture: str, module: str, size: int, tmp_path: Path
) -> None:
    folder = make_checkpoint(architecture, tmp_path, seed=3)
    tensors = load_file(folder / "model.safetensors")
    spec = find_spec(module)(read_config(folder))
    for rank in range(size):
        decoder = Decoder(spec, plain_context(ParallelGroup(size, rank)))
        with Written() as written:
            decoder.update_weights(
                tensors.items()
            )  # which makes no tables, as the end of a first load does
        own = sum(parameter.nbytes for parameter in decoder.parameters())
        assert written.num_bytes <= own


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_pipeline_stage_loads_its_layers_and_reports_unexpected_tensors(
    architecture: str, tmp_path: Path
) -> None:
    module = {"LlamaForCausalLM": "llama:spec", "Qwen3ForCausalLM": "qwen:qwen3"}[architecture]
    folder = make_checkpoint(architecture, tmp_path, seed=3)
    tensors = load_file(folder / "model.safetensors")
    spec = find_spec(module)(read_config(folder))
    shapes: set[str] = set()
    for stage in range(3):
        decoder = Decoder(spec, plain_context(pipeline=Pipeline(3, stage)))
        decoder.load_weights(tensors.items())
        shapes |= set(decoder.weight_shapes())
        assert [layer.name for layer in decoder.kv_layers] == [f"model.layers.{stage}"]
        strange = {**tensors, "model.layers.9.mlp.up_proj.weight": torch.zeros(1)}
        with pytest.raises(ModelError, match=r"unexpected tensors: model\.layers\.9"):
            Decoder(spec, plain_context(pipeline=Pipeline(3, stage))).load_weights(strange.items())
        del strange[f"model.layers.{stage}.mlp.up_proj.weight"]
        with pytest.raises(ModelError, match=rf"missing tensors: model\.layers\.{stage}"):
            Decoder(spec, plain_context(pipeline=Pipeline(3, stage))).load_weights(strange.items())
    assert shapes == set(tensors)


def test_pipeline_stages_split_layers_evenly_in_order() -> None:
    assert [list(Pipeline(3, stage).layers(7)) for stage in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [len(Pipeline(4, stage).layers(4)) for stage in range(4)] == [1, 1, 1, 1]


def test_partition_sets_the_layers_of_each_stage() -> None:
    stages = [Pipeline(3, stage, (1, 4, 2)).layers(7) for stage in range(3)]
    assert stages == [range(1), range(1, 5), range(5, 7)]
