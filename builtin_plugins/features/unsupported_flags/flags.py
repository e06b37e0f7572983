"""Flags of vLLM with an unsupported feature: parsed, but rejected when they request it.

A plugin that adds the feature contributes the options itself and replaces the entries here. A value
equal to the default, or one that disables the feature, is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from core.api import Option, hookimpl

Json = dict[str, Any]
Text = str | None
Number = int | None

PLANNED: Final[Mapping[str, Mapping[str, tuple[Any, Any]]]] = {
    "Custom input and output processors": {
        "io_processor_plugin": (Text, None),
    },
    "Images, audio and video in prompts": {
        "allowed_local_media_path": (str, ""),
        "allowed_media_domains": (list[str] | None, None),
        "limit_mm_per_prompt": (Json, {}),
        "enable_mm_embeds": (bool, False),
        "interleave_mm_strings": (bool, False),
        "media_io_kwargs": (Json, {}),
        "mm_processor_kwargs": (Json | None, None),
        "mm_processor_cache_gb": (float, 4.0),
        "mm_processor_cache_type": (Literal["lru", "shm"] | None, "lru"),
        "mm_shm_cache_max_object_size_mb": (int, 128),
        "mm_encoder_tp_mode": (Literal["weights", "data"], "weights"),
        "mm_encoder_attn_backend": (Text, None),
        "skip_mm_profiling": (bool, False),
        "video_pruning_rate": (float | None, None),
        "disable_chunked_mm_input": (bool, False),
    },
    "Encoder disaggregation": {"ec_transfer_config": (Json | None, None)},
    "Prompts given as embeddings": {"enable_prompt_embeds": (bool, False)},
    "Tool servers": {
        "tool_server": (Text, None),
    },
    "Logits processors by dotted path (write a plugin: `engine plugins new NAME --kind "
    "logits_processors`)": {
        "logits_processor_pattern": (Text, None),
    },
    "Other model and weight formats": {
        "hf_config_path": (Text, None),
        "config_format": (str, "auto"),
        "code_revision": (Text, None),
        "tokenizer_revision": (Text, None),
        "safetensors_load_strategy": (str, "lazy"),
        "model_loader_extra_config": (Json, {}),
        "pt_load_map_location": (str | Json, "cpu"),
        "max_parallel_loading_workers": (Number, None),
    },
    "Fast prefill with KV sharing": {"kv_sharing_fast_prefill": (bool, False)},
    "One block group for different kinds of layers": {
        "disable_hybrid_kv_cache_manager": (bool | None, None),
    },
    "Offloading of weights and caches": {
        "swap_space": (float, 4.0),
        "cpu_offload_gb": (float, 0.0),
    },
    "Graph capture and compilation": {
        "cudagraph_metrics": (bool, False),
    },
    "Attention variants": {
        "attention_config": (Json, {}),
        "disable_sliding_window": (bool, False),
        "disable_cascade_attn": (bool, False),
        "override_attention_dtype": (Text, None),
    },
    "Data parallelism": {
        "data_parallel_size": (int, 1),
        "data_parallel_rank": (Number, None),
        "data_parallel_start_rank": (Number, None),
        "data_parallel_size_local": (Number, None),
        "data_parallel_address": (Text, None),
        "data_parallel_rpc_port": (Number, None),
        "data_parallel_hybrid_lb": (bool, False),
        "data_parallel_external_lb": (bool, False),
        "data_parallel_backend": (str, "mp"),
        "disable_nccl_for_dp_synchronization": (bool, False),
        "aggregate_engine_logging": (bool, False),
        "headless": (bool, False),
        "api_server_count": (Number, 1),
    },
    "Multi-node and context parallelism": {
        "master_addr": (str, "127.0.0.1"),
        "master_port": (int, 29501),
        "nnodes": (int, 1),
        "node_rank": (int, 0),
        "prefill_context_parallel_size": (int, 1),
        "decode_context_parallel_size": (int, 1),
        "dcp_kv_cache_interleave_size": (int, 1),
        "cp_kv_cache_interleave_size": (int, 1),
        "ray_workers_use_nsight": (bool, False),
        "disable_custom_all_reduce": (bool, False),
    },
    "Expert parallelism and micro-batching": {
        "enable_expert_parallel": (bool, False),
        "all2all_backend": (Text, None),
        "enable_dbo": (bool, False),
        "ubatch_size": (int, 0),
        "dbo_decode_token_threshold": (int, 32),
        "dbo_prefill_token_threshold": (int, 512),
        "enable_eplb": (bool, False),
        "eplb_config": (Json, {}),
        "expert_placement_strategy": (Literal["linear", "round_robin"], "linear"),
    },
    "Custom scheduler or worker classes (use plugin kinds and extensions)": {
        "scheduler_cls": (Text, None),
        "worker_cls": (str, "auto"),
        "worker_extension_cls": (str, ""),
        "max_num_partial_prefills": (int, 1),
        "max_long_partial_prefills": (int, 1),
        "additional_config": (Json, {}),
    },
    "Profiling and further metrics": {
        "show_hidden_metrics_for_version": (Text, None),
        "enable_layerwise_nvtx_tracing": (bool, False),
        "enable_mfu_metrics": (bool, False),
    },
    "HTTP server setting": {
        "middleware": (list[str], []),
        "enable_log_outputs": (bool, False),
        "log_error_stack": (bool, False),
    },
}
"""Options by unsupported feature, as (type, default)."""


NEVER: Final[Mapping[str, str]] = {
    "logits_processor_pattern": "--logits-processor-pattern",
    "max_num_partial_prefills": "Concurrent Partial Prefill",
    "max_long_partial_prefills": "Concurrent Partial Prefill",
}
"""Options that vLLM itself rejects, with its feature name; scripts may match the message."""


def _all_zero(value: Any) -> bool:
    """Return whether a multimodal limit allows no item."""
    counts = (
        [v.get("count") if isinstance(v, Mapping) else v for v in value.values()]
        if isinstance(value, Mapping)
        else [1]
    )
    return all(type(count) is int and count == 0 for count in counts)


def _from(minimum: int) -> Callable[[Any], bool]:
    """Return a predicate for numbers of at least `minimum`."""
    return lambda value: isinstance(value, (int, float)) and value >= minimum


NEUTRAL: Final[Mapping[str, Callable[[Any], bool]]] = {
    "limit_mm_per_prompt": _all_zero,
    "mm_processor_cache_gb": lambda value: value == 0,
    "swap_space": _from(0),  # vLLM ignores it, too: preempted requests are recomputed
    "disable_hybrid_kv_cache_manager": lambda value: value is False,
    **dict.fromkeys(("dcp_kv_cache_interleave_size", "cp_kv_cache_interleave_size"), _from(1)),
    **dict.fromkeys(
        (
            "disable_custom_all_reduce",
            "disable_cascade_attn",
            "disable_chunked_mm_input",
            "skip_mm_profiling",
        ),
        lambda value: True,
    ),
}
"""Predicates for accepted non-default values: they disable or tune a missing feature."""
MOVED: Final[Mapping[str, tuple[Any, Any, str]]] = {
    "guided_decoding_backend": (Text, None, "backend"),
    "guided_decoding_disable_fallback": (bool, False, "disable_fallback"),
    "guided_decoding_disable_any_whitespace": (bool, False, "disable_any_whitespace"),
    "guided_decoding_disable_additional_properties": (bool, False, "disable_additional_properties"),
}
"""Renamed flags of older vLLM versions: type, default, and key of `--structured-outputs-config`."""


@hookimpl
def engine_options() -> list[Option]:
    """Return all unsupported and renamed options."""
    planned = [
        Option(
            name, kind, default, feature, refuse=_refusal(name, feature), neutral=NEUTRAL.get(name)
        )
        for feature, options in PLANNED.items()
        for name, (kind, default) in options.items()
    ]
    moved = [
        Option(name, kind, default, "", refuse=f"is now --structured-outputs-config.{key}.")
        for name, (kind, default, key) in MOVED.items()
    ]
    return planned + moved


def _refusal(name: str, feature: str) -> str:
    never = NEVER.get(name)
    if never:
        return f"{never} is not supported. We recommend to remove {never} from your config."
    return f"{feature}: not part of this version. Leave it out."
