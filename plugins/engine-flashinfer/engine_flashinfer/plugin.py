"""The plugin of this distribution: the attention backend `flashinfer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api import Entry, hookimpl


@hookimpl
def engine_attention_backends() -> list[Entry]:
    """Return the backend with the devices and layers it supports.

    Its low priority means that only `--attention-backend` selects it.
    """
    no = [False]
    return [
        Entry(
            "flashinfer",
            "engine_flashinfer.backend:FlashInferAttention",
            "FlashInfer: one plan per step for layers with equal parameters",
            priority=-10,
            when={
                "device": "cuda",
                "dtype": ["float16", "bfloat16"],
                "head_size": [64, 128, 256],
                **dict.fromkeys(("chunk", "alibi", "sinks", "distance_bias", "latent"), no),
            },
            requires=("flashinfer-python>=0.2.8",),
        )
    ]


@hookimpl
def engine_resolve(decisions: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Accept vLLM's name of the backend, in capitals."""
    return (
        {"attention_backend": "flashinfer"}
        if decisions.get("attention_backend") == "FLASHINFER"
        else None
    )
