"""The facts that `Entry.when` may name, by kind. Kinds that are not here are chosen without facts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

OF_PLATFORMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "device": "the platform's device, such as `cpu`",
        "machine": "the processor's architecture, such as `x86_64`",
        "isa": "instruction sets, such as `avx2`: a set, of which one that is wanted must be there",
        "triton": "of GPUs: true where Triton can be imported, which compiles kernels for them",
        "kind": "of GPUs: the platform's name, such as `cuda`",
        "capability": "of GPUs of NVIDIA: ten times the compute capability, such as 90",
        "float8": "of GPUs of NVIDIA: true where eight-bit floats are multiplied",
    }
)
"""What the builtin platforms state; `Platform.facts` of a plugin's may state more."""
OF_MODELS: Final[Mapping[str, str]] = MappingProxyType(
    {"dtype": "of the model: `float32`, `bfloat16`, `float16`"}
)
OF_ATTENTION: Final[Mapping[str, str]] = MappingProxyType(
    {
        "head_size": "all sizes of heads in the model: a list, of which one that is wanted must be "
        "there",
        "window": "true where a layer sees a window only",
        "chunk": "true where a layer sees its own chunk only",
        "softcap": "true where a layer's scores are capped",
        "alibi": "true where a layer's scores fall with distance",
        "sinks": "true where a layer has scores that give no value",
        "distance_bias": "true where a layer adds a bias by distance",
        "latent": "true where a layer keeps latents",
        "kv_dtype": "what `--kv-cache-dtype` says: `auto` where keys and values are cached as the "
        "model computes them",
        "cross": "true where a layer attends to what an encoder made",
    }
)
FACTS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "op_impls": {**OF_PLATFORMS, **OF_MODELS},
        "quant_methods": {**OF_PLATFORMS, **OF_MODELS},
        "attention_backends": {**OF_PLATFORMS, **OF_MODELS, **OF_ATTENTION},
    }
)
"""By kind, each fact with its meaning.

Of quantization methods those are chosen by facts that give "plain weights".
"""
