"""Keywords and prompt keys of vLLM with an unsupported feature: rejected when they request it.

A plugin that adds a feature reads the name itself and replaces the entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api import EngineConfig, Registry, hookimpl
from core.api.features import Unsupported

_ADAPTERS: Final = "needs LoRA adapters; start the engine with enable_lora=True (--enable-lora)"
_MEDIA: Final = "needs images, audio and video, which are not part of this version"
UNSUPPORTED: Final[Mapping[str, Unsupported]] = {
    "lora_request": Unsupported(_ADAPTERS),
    "multi_modal_data": Unsupported(_MEDIA),
    "multi_modal_uuids": Unsupported(_MEDIA),
    "mm_processor_kwargs": Unsupported(_MEDIA),
    "kv_transfer_params": Unsupported("needs a KV connector between engines, such as tcp"),
    "token_type_ids": Unsupported("is computed by the engine for scored text pairs"),
    "tokenization_kwargs": Unsupported(
        "is not supported. Set truncate_prompt_tokens to truncate prompts"
    ),
    "trace_headers": Unsupported("needs tracing, which is not part of this version"),
    "reset_running_requests": Unsupported(
        "is not supported. Wait until no request runs, or abort them", (False,)
    ),
    "reset_connector": Unsupported("is not supported: KV connectors keep their blocks", (False,)),
}
"""Unsupported names with the missing feature and accepted values."""


class KnownNames:
    """Admission extension that only lists unsupported names."""

    unsupported = UNSUPPORTED


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    """Return the extension."""
    return [KnownNames()]
