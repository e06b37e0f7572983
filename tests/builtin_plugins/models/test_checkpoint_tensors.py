"""Every architecture: a missing or additional tensor fails the load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.errors import ModelError
from core.model_spec.decoder import DecoderSpec
from core.models.layers.decoder import Decoder
from core.testing.checkpoints import ARCHITECTURES, tiny_config
from core.testing.one_sequence import plain_context
from tests.builtin_plugins.models.test_engine_parity import open_engine

STRAY = "model.layers.0.stray.weight"


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_model_expects_exactly_the_checkpoint_tensors(
    architecture: str, spec_of: Callable[[str, Any], Any]
) -> None:
    config = SimpleNamespace(**json.loads(tiny_config(architecture).to_json_string()))

    def build() -> Any:
        spec = spec_of(architecture, config)
        return (
            Decoder(spec, plain_context())
            if isinstance(spec, DecoderSpec)
            else spec.build(plain_context())
        )

    shapes = dict(build().weight_shapes())
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    missing = sorted(tensors)[len(tensors) // 2]
    with pytest.raises(ModelError, match="1 unexpected tensors") as refused:
        build().load_weights({**tensors, STRAY: torch.zeros(2, 2)}.items())
    assert STRAY in str(refused.value)
    with pytest.raises(ModelError, match="missing tensors") as refused:
        build().load_weights((name, tensor) for name, tensor in tensors.items() if name != missing)
    assert missing in str(refused.value)


KINDS = {
    "dense": "LlamaForCausalLM",
    "experts": "Qwen3MoeForCausalLM",
    "states": "JambaForCausalLM",
    "shared transformers": "Zamba2ForCausalLM",
    "latents": "DeepseekV3ForCausalLM",
    "encoder and decoder": "T5ForConditionalGeneration",
    "frames and decoder": "WhisperForConditionalGeneration",
    "encoder": "BertModel",
    "modules of transformers": "beam",
}


@pytest.mark.parametrize("kind", KINDS)
def test_missing_or_additional_tensor_is_rejected(
    kind: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(checkpoint(KINDS[kind]), tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    missing = sorted(name for name in tensors if "norm" not in name and "bias" not in name)[
        len(tensors) // 4
    ]
    changed = {
        f"unexpected .*{STRAY}": {**tensors, STRAY: torch.zeros(2, 2)},
        f"missing .*{missing}": {
            name: tensor for name, tensor in tensors.items() if name != missing
        },
    }
    for message, stored in changed.items():
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(ModelError, match=message):
            open_engine(folder)
