"""The feature's settings, read from the config once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from builtin_plugins.features.multimodal.media.limits import DEFAULT_MAX_BYTES
from builtin_plugins.features.multimodal.media.settings import max_images
from core.api import EngineConfig

GIB: Final = 1 << 30
SLICE_TOKENS: Final = 256


@dataclass(frozen=True, slots=True)
class Settings:
    """Resolved settings."""

    max_images: int
    """Largest number of images in a prompt."""
    processor_kwargs: Mapping[str, Any]
    """Keywords of the input processor for every request."""
    trust_request_kwargs: bool
    """Whether HTTP requests may set keywords of the input processor."""
    enable_embeddings: bool
    """Whether items may be embeddings of the client."""
    max_embedding_bytes: int
    """Largest size of an item's embeddings."""
    store_bytes: int
    """Size up to which processed tensors stay for later requests."""
    cache_tokens: int
    """Size of the encoder cache in embeddings."""
    step_tokens: int
    """Embeddings that one step encodes, unless a single item is larger."""
    chunk_tokens: int
    """Longest chunk of a prompt."""
    slice_tokens: int = 0
    """Embeddings of an item that a step with decode rows encodes; 0: items are not sliced."""
    whole_items: bool = False
    """Whether a chunk of a prompt never cuts through an item."""

    @classmethod
    def from_config(cls, config: EngineConfig) -> Settings:
        """Return the settings. Raises `ConfigError`."""
        options = config.options
        budget = config.scheduler.max_num_batched_tokens or 0
        step_tokens = options.get("mm_encoder_step_tokens") or max(budget, 1024)
        return cls(
            max_images=max_images(options.get("limit_mm_per_prompt") or {}),
            processor_kwargs=options.get("mm_processor_kwargs") or {},
            trust_request_kwargs=bool(options.get("trust_request_mm_kwargs")),
            enable_embeddings=bool(options.get("enable_mm_embeds")),
            max_embedding_bytes=options.get("max_media_bytes") or DEFAULT_MAX_BYTES,
            store_bytes=int(options.get("mm_processor_cache_gb", 4.0) * GIB),
            cache_tokens=options.get("mm_encoder_cache_tokens") or max(4 * step_tokens, 16384),
            step_tokens=step_tokens,
            slice_tokens=SLICE_TOKENS if config.scheduler.max_mixed_prefill_tokens else 0,
            chunk_tokens=min(budget, config.scheduler.long_prefill_token_threshold or budget),
            whole_items=bool(options.get("disable_chunked_mm_input")),
        )
