"""Reads consolidated*.safetensors under the names of Hugging Face's layout.

Names as in vLLM's `MistralLarge3ForCausalLM` (vllm/model_executor/models/mistral_large_3.py). The
rows of queries and keys alternate between both halves of a rotary pair there; here they do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import torch

from builtin_plugins.weight_loaders.safetensors.loader import SafetensorsLoader
from core.api import EngineConfig, ModelError
from core.api.models import ModelSource
from core.model_spec.mistral_names import ENDS, MATRICES, MLPS, PARTS

SUFFIXES: Final = {"qscale_weight": "weight_scale", "qscale_act": "input_scale"}
OF_IMAGES: Final = re.compile(
    r"(vision_|patch_merger|pre_mm_projector_norm|mm_(whisper|streams)_embeddings)"
)
"""Tensors of encoders, which are left out: only text is served."""
_LAYER: Final = re.compile(r"layers\.(\d+)\.(.+)\.(\w+)")
_MLP: Final = re.compile(r"(feed_forward|shared_experts|experts\.\d+)\.(w[123])")


class MistralLoader(SafetensorsLoader):
    """The tensors of a checkpoint in Mistral's own format, renamed."""

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        super().__init__(source, config)
        heads = getattr(source.hf_config, "num_attention_heads", 0)
        kv_heads = getattr(source.hf_config, "num_key_value_heads", heads)
        self._heads = {"q_proj": heads, "k_proj": kv_heads}
        if getattr(source.hf_config, "kv_lora_rank", None):
            self._heads = {}  # latent attention rotates pairs in both layouts

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor); queries and keys are copied in another order of rows."""
        for name, tensor in super().tensors():
            if OF_IMAGES.match(name):
                continue
            renamed = rename(name)
            part = renamed.removesuffix(".weight").rpartition(".")[2]
            yield renamed, in_halves(tensor, self._heads[part]) if part in self._heads else tensor

    def headers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, meta tensor): names, dtypes and shapes only."""
        for name, tensor in super().headers():
            if not OF_IMAGES.match(name):
                yield rename(name), tensor


def rename(name: str) -> str:
    """Return a tensor's name in Hugging Face's layout. Raises `ModelError` for an unknown one."""
    stem, _, suffix = name.rpartition(".")
    suffix = SUFFIXES.get(suffix, suffix)
    if stem in ENDS:
        return f"{ENDS[stem]}.{suffix}"
    layer = _LAYER.fullmatch(f"{stem}.{suffix}")
    inner = PARTS.get(layer[2]) if layer else None
    if layer and inner is None and (mlp := _MLP.fullmatch(layer[2])):
        inner = f"{MLPS.get(mlp[1], f'mlp.{mlp[1]}')}.{MATRICES[mlp[2]]}"
    if layer is None or inner is None:
        raise ModelError(
            f"{name!r:.100}: got an unknown tensor; expected the names of Mistral's own format. "
            "Use the checkpoint with a config.json."
        )
    return f"model.layers.{layer[1]}.{inner}.{suffix}"


def in_halves(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Return rows of pairs as rows of halves, head by head; scales of a tensor as they are."""
    if tensor.ndim != 2 or tensor.shape[0] == 1:
        return tensor
    if type(heads) is not int or heads < 1 or tensor.shape[0] % (2 * heads):
        raise ModelError(
            f"n_heads or n_kv_heads in params.json: got {heads!r:.60}; expected a number that "
            f"halves of {tensor.shape[0]} rows are divided by. Restore the file."
        )
    pairs = tensor.view(heads, -1, 2, tensor.shape[1])
    return pairs.transpose(1, 2).reshape(tensor.shape)
