"""Facts that `Entry.when` may name, for checks and the docs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

OF_PLATFORMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "device": "device of the platform, such as `cpu`",
        "machine": "processor architecture, such as `x86_64`",
        "isa": "set of instruction sets, such as `avx2`; one of the required ones must be in it",
        "triton": "GPUs: true if Triton, which compiles kernels, can be imported",
        "kind": "GPUs: name of the platform, such as `cuda`",
        "capability": "NVIDIA GPUs: ten times the compute capability, such as 90",
        "float8": "NVIDIA GPUs: true if FP8 matrix products are supported",
    }
)
"""Facts of the builtin platforms; `Platform.facts` of a plugin may
have more.
"""
OF_MODELS: Final[Mapping[str, str]] = MappingProxyType(
    {"dtype": "dtype of the model: `float32`, `bfloat16`, `float16`"}
)
OF_ATTENTION: Final[Mapping[str, str]] = MappingProxyType(
    {
        "head_size": "list of the model's head sizes; one of the required ones must be in it",
        "window": "true if a layer has a sliding window",
        "chunk": "true if a layer has chunked attention",
        "softcap": "true if a layer's scores have a softcap",
        "alibi": "true if a layer has ALiBi slopes",
        "sinks": "true if a layer has attention sinks",
        "distance_bias": "true if a layer has a relative bias",
        "latent": "true if a layer caches latents (MLA)",
        "sparse": "true if a layer attends to tokens that an indexer selects",
        "kv_dtype": "`--kv-cache-dtype`; `auto`: the model's dtype",
        "cross": "true if a layer has cross-attention",
    }
)
OF_CLIENTS: Final[Mapping[str, str]] = MappingProxyType(
    {"data_parallel_size": "number of engines (`--data-parallel-size`)"}
)
FACTS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "clients": OF_CLIENTS,
        "op_impls": {**OF_PLATFORMS, **OF_MODELS},
        "quant_methods": {**OF_PLATFORMS, **OF_MODELS},
        "attention_backends": {**OF_PLATFORMS, **OF_MODELS, **OF_ATTENTION},
    }
)
"""Meaning of each fact, by kind; other kinds are chosen without facts.

Of quantization methods only those that give "plain weights" are chosen by facts.
"""
