"""Flags of vLLM without a purpose here, by the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Json = dict[str, Any]
Text = str | None
Number = int | None

NOT_NEEDED: Final[Mapping[str, Mapping[str, tuple[Any, Any]]]] = {
    "images and text keep the order that a message gives them": {
        "interleave_mm_strings": (bool, False),
    },
    "processed images lie in shared memory by their SHA-256, and the least recently used leave "
    "first": {
        "mm_processor_cache_type": (Text, "lru"),
        "mm_hasher_algorithm": (str, "blake3"),
    },
    "the kernel of an operation is chosen by the platform; `--attention-backend` names an "
    "attention backend, and `engine plugins explain op_impls` shows the others": {
        "moe_backend": (str, "auto"),
        "linear_backend": (str, "auto"),
        "sparse_indexer_topk_backend": (str, "auto"),
        "mamba_backend": (str, "triton"),
        "mamba_ssu_algorithm": (Text, None),
        "gdn_prefill_backend": (Text, None),
        "kda_prefill_backend": (Text, None),
        "kda_decode_backend": (Text, None),
        "kernel_config": (Json, {}),
        "ir_op_priority": (Json, {}),
    },
    "kernels are not tuned at the start and compile before the first request": {
        "enable_flashinfer_autotune": (bool | None, None),
        "jit_monitor_mode": (str, "warn"),
        "jit_monitor_verbose": (bool, False),
    },
    "preempted requests are recomputed, as in vLLM since 0.11": {
        "swap_space": (float, 4.0),
    },
    "the window of a sliding layer is recomputed exactly": {
        "swa_bounded_replay": (bool, True),
    },
    "a request is admitted only if the KV cache holds its whole prompt": {
        "scheduler_reserve_full_isl": (bool, True),
    },
    "recurrent states are cached where --enable-prefix-caching is on": {
        "mamba_cache_mode": (Text, None),
    },
    "memory of a sleeping engine is returned to the device by --enable-sleep-mode": {
        "enable_cumem_allocator": (bool, False),
    },
    "noise of sampling is computed from counters, in one precision on every device": {
        "use_fp64_gumbel": (bool, False),
    },
    "every rank has all tokens, so outputs of experts are summed and no tokens are exchanged": {
        "all2all_backend": (Text, "allgather_reducescatter"),
    },
    "a rank reads only the weights of its own layers and experts": {
        "enable_ep_weight_filter": (bool, False),
    },
    "weights are mapped from their files, so the page cache reads them ahead": {
        "safetensors_prefetch_num_threads": (int, 8),
        "safetensors_prefetch_block_size": (int, 16 << 20),
    },
    "engines step on their own, and need no synchronization": {
        "disable_nccl_for_dp_synchronization": (bool | None, None),
        "dp_sync_interval": (int, 16),
    },
    "the log line of statistics is that of all engines of a server": {
        "aggregate_engine_logging": (bool, False),
    },
    "several engines are bound each to its share of the cores (--data-parallel-cpu-binding); "
    "`taskset`, `numactl` or CUDA_VISIBLE_DEVICES limit what this process may use": {
        "device_ids": (Text, None),
        "numa_bind": (bool, False),
        "numa_bind_cpus": (list[str] | None, None),
        "numa_bind_nodes": (list[int] | None, None),
    },
    "templates and tokenizers run in a fair queue that never blocks streams": {
        "renderer_num_workers": (int, 1),
    },
    "an adapter costs only the rows that use it": {
        "specialize_active_lora": (bool, False),
    },
    "late interaction scores are computed where the vectors are": {
        "enable_flash_late_interaction": (bool, True),
    },
    "a prompt has the format of the checkpoint's own chat template": {
        "cohere_format": (str, "cmd4"),
        "cohere_is_reasoning_model": (bool, True),
    },
    "`thinking` of type disabled switches thoughts off in the template": {
        "anthropic_disabled_thinking_effort": (str, "auto"),
    },
    "tools with `strict` are held exactly, and others as far as the constraint can": {
        "tool_strict_level": (Text, None),
    },
    "logs are set by --log-level, --log-format and --log-config-file": {
        "logging_config": (Json | None, None),
    },
    "every VLLM_* variable is named at the start, and those that guard stop it": {
        "fail_on_environ_validation": (bool, False),
    },
    "outputs are logged once, when they have ended": {"enable_log_deltas": (bool, True)},
    "the description at /openapi.json has no pages that load scripts": {
        "enable_offline_docs": (bool, False),
    },
    "the engine is supervised: --step-timeout and --heartbeat-timeout end a stuck one, which "
    "starts again with its requests": {
        "watchdog_config": (Json, {}),
    },
    "batches follow the load: --max-num-batched-tokens and --max-num-seqs bound them, and "
    "`engine plan` suggests values": {
        "performance_mode": (str, "balanced"),
    },
}
"""Options by the reason, as (type, vLLM's default)."""
