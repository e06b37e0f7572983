"""Keywords and prompt keys people know from vLLM whose feature is missing here: a value that asks
for it is refused.

A plugin that brings a feature reads the name itself; the row here then gives way, as with flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api import EngineConfig, Unserved, hookimpl

_ADAPTERS: Final = "needs LoRA adapters; start the engine with enable_lora=True (--enable-lora)"
_MEDIA: Final = "needs images, audio and video, which are not part of this version"
_EMBEDDINGS: Final = "needs prompts given as embeddings, which are not part of this version"
UNSERVED: Final[Mapping[str, Unserved]] = {
    "lora_request": Unserved(_ADAPTERS),
    "multi_modal_data": Unserved(_MEDIA),
    "multi_modal_uuids": Unserved(_MEDIA),
    "mm_processor_kwargs": Unserved(_MEDIA),
    "prompt_embeds": Unserved(_EMBEDDINGS),
    "kv_transfer_params": Unserved(
        "is for engines that send each other blocks: start them with a connector that does, such "
        "as tcp"
    ),
    "token_type_ids": Unserved(
        "is not read; for pairs of texts, which are scored, the engine makes them"
    ),
    "tokenization_kwargs": Unserved(
        "is not read: texts are tokenized as the model's tokenizer says. To cut them set "
        "truncate_prompt_tokens"
    ),
    "chat_template_content_format": Unserved(
        "is found out from the chat template; leave it out", ("auto",)
    ),
    "trace_headers": Unserved("needs tracing, which is not part of this version"),
    "data_parallel_rank": Unserved(
        "needs several engines side by side, which are not part of this version"
    ),
    "reset_running_requests": Unserved(
        "is not served: wait until no request runs, or abort them", (False,)
    ),
    "reset_connector": Unserved("is not served: what a KV connector has stays", (False,)),
}
"""Name to what is missing, and values that ask for nothing."""


class KnownNames:
    """Reads nothing."""

    unserved = UNSERVED


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    """Say what is missing."""
    return [KnownNames()]
