"""Mllama (Llama 3.2 Vision): layers of gated cross attention read the states of images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import torch

from builtin_plugins.models.vision.decoders import native_decoder
from core.model_spec.attention import AttentionSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import CrossAttentionSpec, LayerSpec
from core.model_spec.names import WeightNames

NUM_PROMPT_TOKENS: Final = 8
"""Tokens after the vocabulary, such as the placeholder, that the head has no rows for."""
NAMES: Final = WeightNames(
    cross_in="input_layernorm",
    cross_q="cross_attn.q_proj",
    cross_k="cross_attn.k_proj",
    cross_v="cross_attn.v_proj",
    cross_o="cross_attn.o_proj",
    cross_q_norm="cross_attn.q_norm",
    cross_k_norm="cross_attn.k_norm",
    cross_gate="cross_attn_attn_gate",
    cross_mlp_gate="cross_attn_mlp_gate",
)


def cross_positions(config: Any) -> int:
    """Return the states of an image: those of all its tiles, padding included."""
    vision = config.vision_config
    patches = (vision.image_size // vision.patch_size) ** 2
    return int(vision.max_num_tiles * (patches + 1))


def decoder(hf_config: Any) -> DecoderSpec:
    """Return Llama with layers of gated cross attention."""
    read = native_decoder("llama")
    assert read is not None
    found = read(hf_config)
    own = found.layers[0]
    assert isinstance(own.attention, AttentionSpec)
    norm = own.attention_in
    heads = replace(own.attention, rope=None, qk_norm=norm)
    cross = CrossAttentionSpec(attention=heads, norm_in=norm, gated=True)
    layer = LayerSpec(cross=cross, mlp=own.mlp, mlp_in=own.mlp_in)
    crossing = set(ModelFacts(hf_config).required("cross_attention_layers"))
    return replace(
        found,
        vocab_size=found.vocab_size + NUM_PROMPT_TOKENS,
        num_prompt_tokens=NUM_PROMPT_TOKENS,
        tied_head=False,
        layers=tuple(layer if i in crossing else own for i, own in enumerate(found.layers)),
        names=NAMES,
    )


def features(base: Any) -> Callable[..., Any]:
    """Return the function that encodes an image's tiles; those of padding come last."""

    def encode(
        pixel_values: torch.Tensor,
        aspect_ratio_ids: torch.Tensor,
        aspect_ratio_mask: torch.Tensor,
        **_: Any,
    ) -> SimpleNamespace:
        states = base.vision_model(pixel_values, aspect_ratio_ids, aspect_ratio_mask)[0]
        padding = int((aspect_ratio_mask == 0).sum())
        projected = base.multi_modal_projector(states)
        return SimpleNamespace(pooler_output=projected, num_padding=padding * states.shape[-2])

    return encode
