"""The plugin of this distribution: the attention backend `flash_attn`."""

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
            "flash_attn",
            "engine_flash_attn.backend:FlashAttention",
            "flash-attn 2: one call for all sequences of a step; blocks of 256 tokens",
            priority=-10,
            when={
                "device": "cuda",
                "dtype": ["float16", "bfloat16"],
                "head_size": range(1, 257),
                **dict.fromkeys(("chunk", "sinks", "distance_bias", "latent"), no),
            },
            requires=("flash-attn>=2.6",),
        )
    ]


@hookimpl
def engine_resolve(decisions: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Accept vLLM's name of the backend, in capitals."""
    return (
        {"attention_backend": "flash_attn"}
        if decisions.get("attention_backend") == "FLASH_ATTN"
        else None
    )
