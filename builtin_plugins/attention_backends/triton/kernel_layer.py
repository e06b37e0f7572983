"""A layer's attention parameters in the form of the kernels."""

from __future__ import annotations

from core_kernels.triton.attention_shapes import Layer

from core.model_spec.attention_params import AttentionParams


def kernel_layer(params: AttentionParams) -> Layer:
    """Return the layer's parameters in the kernels' form."""
    return Layer(
        heads=params.heads,
        kv_heads=params.kv_heads,
        head_size=params.head_size,
        value_size=params.head_size if params.value_size is None else params.value_size,
        scale=params.scale,
        is_latent=params.value_size is not None,
        causal=params.causal,
        window=params.window or 0,
        chunk=params.chunk or 0,
        softcap=params.softcap or 0.0,
        alibi=params.alibi,
        sinks=params.sinks,
        distance_bias=params.distance_bias,
    )
