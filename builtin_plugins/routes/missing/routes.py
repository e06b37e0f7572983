"""Paths of vLLM, OpenAI, Ollama, llama.cpp and Cohere that need a flag or are not served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.api import EngineConfig
from core.api.serving import ServedEngine

_AUDIO: Final = "the engine reads and writes text, not audio"
_IMAGES: Final = "the engine reads text and images, and writes text"
_BATCHES: Final = "`engine run-batch FILE` runs a file of requests"
_WEIGHTS: Final = "weights are not sent between engines in this version"
_ELASTIC: Final = "expert parallelism is not part of this version"
_OPERATOR: Final = "the server was started without --enable-operator-routes"
_LORA: Final = "the server was started without --enable-lora and --enable-runtime-lora"
_OLLAMA: Final = "this is Ollama's API; POST OpenAI's requests to /v1/chat/completions"
_LLAMA_CPP: Final = "this is llama.cpp's API; POST OpenAI's requests to /v1/chat/completions"
_SCALE_OUT: Final = "the server was started without --enable-scale-out"
MISSING_PATHS: Final[Mapping[str, str]] = {
    "/v1/audio": _AUDIO,
    "/v1/realtime": _AUDIO,
    "/v1/images": _IMAGES,
    "/v1/videos": _IMAGES,
    "/v1/batches": _BATCHES,
    "/v1/files": _BATCHES,
    "/v1/messages/batches": _BATCHES,
    "/v1/conversations": "responses are continued with `previous_response_id`",
    "/v1/assistants": "responses are continued with `previous_response_id`",
    "/v1/threads": "responses are continued with `previous_response_id`",
    "/v1/moderations": "there is no moderation",
    "/v1/fine_tuning": "there is no training",
    "/v1/vector_stores": "there is no vector store",
    "/v1/systemone": "POST /v1/decisions answers questions with probabilities",
    "/v1/chat": "this is Cohere's first API; POST to /v1/chat/completions or /v2/chat",
    "/v1/generate": "this is Cohere's first API; POST to /v1/completions",
    "/v1/chat/completions/render": _SCALE_OUT,
    "/v1/completions/render": _SCALE_OUT,
    "/v1/chat/completions/derender": _SCALE_OUT,
    "/v1/completions/derender": _SCALE_OUT,
    "/v1/messages/render": "POST /v1/chat/completions/render renders a chat",
    "/v1/responses/render": "POST /v1/chat/completions/render renders a chat",
    "/inference/v1/generate": "the server was started without --tokens-only and --enable-scale-out",
    "/fault_tolerance": "data and expert parallelism are not part of this version",
    "/scale_elastic_ep": _ELASTIC,
    "/is_scaling_elastic_ep": _ELASTIC,
    "/init_weight_transfer_engine": _WEIGHTS,
    "/shutdown_weight_transfer_engine": _WEIGHTS,
    "/start_weight_update": _WEIGHTS,
    "/update_weights": _WEIGHTS,
    "/finish_weight_update": _WEIGHTS,
    "/weight_checker": _WEIGHTS,
    **dict.fromkeys(
        ("/api/chat", "/api/embed", "/api/embeddings", "/api/generate", "/api/show"), _OLLAMA
    ),
    **dict.fromkeys(("/api/tags", "/api/version"), _OLLAMA),
    **dict.fromkeys(("/completion", "/infill", "/props", "/slots"), _LLAMA_CPP),
    **dict.fromkeys(
        (
            "/collective_rpc",
            "/is_paused",
            "/is_sleeping",
            "/pause",
            "/release_kv_cache_memory",
            "/reset_prefix_cache",
            "/resume",
            "/server_info",
            "/sleep",
            "/start_profile",
            "/stop_profile",
            "/wake_up",
        ),
        _OPERATOR,
    ),
    "/tokenizer_info": "the server was started without --enable-tokenizer-info-endpoint",
    "/load": "the server was started without --enable-server-load-tracking",
    "/v1/load_lora_adapter": _LORA,
    "/v1/unload_lora_adapter": _LORA,
}
"""Why a path is not served, by path; a path stands for those below it, too."""


class MissingRoutes:
    """Serves nothing; the server adds the reasons to its answers."""

    missing_paths = MISSING_PATHS

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        """The reasons are the same for every engine."""

    def routes(self) -> Sequence[Any]:
        """Return no routes."""
        return []
