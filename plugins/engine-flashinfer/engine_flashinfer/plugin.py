"""What the distribution brings: the attention backend `flashinfer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api import Entry, hookimpl


@hookimpl
def engine_attention_backends() -> list[Entry]:
    """Return the backend, for devices and layers that its kernels know; it is taken when it is
    asked for.
    """
    no = [False]
    return [
        Entry(
            "flashinfer",
            "engine_flashinfer.backend:FlashInferAttention",
            "FlashInfer: a plan of each step for layers that see alike",
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
    """Take its name in capitals, as vLLM has it."""
    return (
        {"attention_backend": "flashinfer"}
        if decisions.get("attention_backend") == "FLASHINFER"
        else None
    )
