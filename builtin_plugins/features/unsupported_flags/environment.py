"""Environment variables of vLLM: named at the start, and refused where ignoring one is unsafe."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Final

from core.api import ConfigError, hookimpl

log = logging.getLogger(__name__)

PREFIX: Final = "VLLM_"
NO: Final = frozenset({"", "0", "false", "False"})
"""Values that switch a variable off."""
GUARDS: Final[Mapping[str, str]] = {
    "VLLM_API_KEY": "Set ENGINE_API_KEY: without it, the server answers without a key",
    "VLLM_PLUGINS": "Set ENGINE_PLUGINS or --plugins: without it, every installed plugin is loaded",
    "VLLM_BATCH_INVARIANT": "Kernels need not give the same bits in every batch",
    "VLLM_ENFORCE_STRICT_TOOL_CALLING": "Set `strict` on each tool with exact arguments",
    "VLLM_HTTP_MAX_REQUEST_BODY_SIZE": "Set --max-request-bytes",
    "VLLM_MAX_N_SEQUENCES": "A request has at most 1024 sequences",
    "VLLM_MAX_COMPLETION_PROMPTS": "A request has at most 1024 prompts",
}
"""Variables that protect users or results, with what to do instead; they stop the start."""
REPLACEMENTS: Final[Mapping[str, str]] = {
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "--hf-overrides.max_position_embeddings",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "--enable-runtime-lora",
    "VLLM_ATTENTION_BACKEND": "--attention-backend",
    "VLLM_COMPUTE_NANS_IN_LOGITS": "the metric corrupted_requests always counts them",
    "VLLM_CPU_KVCACHE_SPACE": "--kv-cache-memory-bytes",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "--num-threads",
    "VLLM_CPU_OMP_THREADS_BIND": "--data-parallel-cpu-binding, taskset and --num-threads",
    "VLLM_DO_NOT_TRACK": "nothing is reported",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "--disable-frontend-multiprocessing",
    "VLLM_ENGINE_ITERATION_TIMEOUT_S": "--step-timeout",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "--step-timeout",
    "VLLM_GC_DEBUG": "--gc-debug",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "--timeout-keep-alive",
    "VLLM_IMAGE_FETCH_TIMEOUT": "--media-fetch-timeout",
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "--max-restarts",
    "VLLM_LOGGING_CONFIG_PATH": "--log-config-file",
    "VLLM_LOGGING_LEVEL": "--log-level or ENGINE_LOG_LEVEL",
    "VLLM_LOG_STATS_INTERVAL": "--log-stats-interval",
    "VLLM_LORA_RESOLVER_CACHE_DIR": "--lora-resolver-cache-dir",
    "VLLM_LORA_RESOLVER_HF_REPO_LIST": "--lora-hub-repos",
    "VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES": "--max-media-bytes",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "redirects are checked like URLs",
    "VLLM_NO_USAGE_STATS": "nothing is reported",
    "VLLM_PORT": "--port",
    "VLLM_PP_LAYER_PARTITION": "--pipeline-layer-partition",
    "VLLM_RAISE_ON_LOGIT_NANS": "a request with such logits always fails",
    "VLLM_RPC_TIMEOUT": "--heartbeat-timeout",
    "VLLM_SERVER_DEV_MODE": "--enable-operator-routes",
    "VLLM_TARGET_DEVICE": "--device",
    "VLLM_USE_MODELSCOPE": "HF_ENDPOINT",
    "VLLM_WORKER_MULTIPROC_METHOD": "every process is fresh",
}
"""What does the same here, by variable."""


def guard_error(environment: Mapping[str, str]) -> str:
    """Return why the start must stop; empty if it need not."""
    for name, action in GUARDS.items():
        if environment.get(name, "") in NO:
            continue
        if name == "VLLM_API_KEY" and environment.get("ENGINE_API_KEY"):
            continue
        return (
            f"{name} is set, but has no effect here; ignoring it would be unsafe. {action}; then "
            f"unset {name}."
        )
    return ""


def ignored(environment: Mapping[str, str]) -> str:
    """Return the variables without an effect, each with what replaces it; empty without any."""
    names = sorted(name for name in environment if name.startswith(PREFIX))
    return ", ".join(
        f"{name} ({REPLACEMENTS[name]})" if name in REPLACEMENTS else name for name in names
    )


@hookimpl
def engine_process_start(process: str) -> None:
    """Name vLLM's variables where an engine starts. Raises `ConfigError` for one that guards."""
    if process != "main":
        return
    _refuse_guards()
    if names := ignored(os.environ):
        log.warning("variables of vLLM have no effect here: %s", names)


@hookimpl(optionalhook=True)
def engine_check_settings() -> None:
    _refuse_guards()


def _refuse_guards() -> None:
    """Raise `ConfigError` for a variable of vLLM that guards."""
    if error := guard_error(os.environ):
        raise ConfigError(error)
