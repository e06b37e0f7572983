"""Flags of vLLM 0.33 and older of features that are missing here, by feature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

Json = dict[str, Any]
Text = str | None
Number = int | None
Texts = list[str] | None

MISSING: Final[Mapping[str, Mapping[str, tuple[Any, Any]]]] = {
    "Custom input and output processors": {
        "io_processor_plugin": (Text, None),
    },
    "Audio and video in prompts, and settings of image encoders": {
        "mm_processor_device": (str, "auto"),
        "mm_shm_cache_max_object_size_mb": (int, 128),
        "mm_tensor_ipc": (str, "direct_rpc"),
        "mm_ipc_gpu_memory_gb": (float, 0.0),
        "mm_device_do_normalize": (bool | None, None),
        "mm_encoder_only": (bool, False),
        "mm_encoder_tp_mode": (Literal["weights", "data"], "weights"),
        "mm_encoder_attn_backend": (Text, None),
        "mm_encoder_attn_dtype": (Text, None),
        "mm_encoder_fp8_scale_path": (Text, None),
        "mm_encoder_fp8_scale_save_path": (Text, None),
        "mm_encoder_fp8_scale_save_margin": (float, 1.5),
        "skip_mm_profiling": (bool, False),
        "video_pruning_rate": (float | None, None),
        "video_pruning_method": (str, "evs"),
        "enable_tower_connector_lora": (bool, False),
    },
    "Diffusion language models": {"diffusion_config": (Json | None, None)},
    "Engram memory layers": {"engram_config": (Json | None, None)},
    "Encoder disaggregation": {
        "ec_transfer_config": (Json | None, None),
        "ec_manager_config": (Json, {}),
    },
    "Tool servers (`pip install plugins/engine-mcp` in a checkout)": {
        "tool_server": (Text, None),
    },
    "Servers of gRPC": {
        "grpc": (bool, False),
        "grpc_port": (Number, None),
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
        "safetensors_load_strategy": (Text, None),
        "model_loader_extra_config": (Json, {}),
        "pt_load_map_location": (str | Json, "cpu"),
        "max_parallel_loading_workers": (Number, None),
        "quantization_config": (Json | None, None),
        "allow_deprecated_quantization": (bool, False),
    },
    "Fast prefill with KV sharing": {"kv_sharing_fast_prefill": (bool, False)},
    "One block group for different kinds of layers": {
        "disable_hybrid_kv_cache_manager": (bool | None, None),
    },
    "A KV cache dtype of its own for some layers": {
        "kv_cache_dtype_skip_layers": (list[str], []),
    },
    "Offloading of weights": {
        "cpu_offload_gb": (float, 0.0),
        "cpu_offload_params": (list[str], []),
        "offload_backend": (Literal["auto", "prefetch", "uva"], "auto"),
        "offload_group_size": (int, 0),
        "offload_num_in_group": (int, 1),
        "offload_params": (list[str], []),
        "offload_prefetch_step": (int, 1),
    },
    "Graph capture and compilation": {
        "cudagraph_metrics": (bool, False),
        "monokernel": (bool, False),
    },
    "Attention variants": {
        "attention_config": (Json, {}),
        "disable_sliding_window": (bool, False),
        "disable_cascade_attn": (bool | None, None),
        "override_attention_dtype": (Text, None),
    },
    "Other methods of caching recurrent states": {
        "enable_mamba_cache_stochastic_rounding": (bool, False),
        "enable_mamba_shared_prefix_checkpoint": (bool, False),
        "mamba_cache_philox_rounds": (int, 0),
        "replayssm_buffer_len": (int, 16),
        "use_replayssm": (bool, False),
    },
    "Prefix cache retention by distance": {
        "prefix_cache_retention_interval": (Number, 0),
        "prefix_match_unit": (Number, None),
    },
    "Engines on other hosts": {
        "data_parallel_address": (Text, None),
        "data_parallel_rpc_port": (Number, None),
    },
    "Decode context parallelism (it saves memory only with more ranks than key-value heads)": {
        "decode_context_parallel_size": (int, 1),
        "dcp_comm_backend": (Text, None),
        "dcp_q_replicate": (bool | None, None),
        "dcp_kv_cache_interleave_size": (int, 1),
        "cp_kv_cache_interleave_size": (Number, None),
    },
    "Prefill context parallelism, and settings of collectives": {
        "distributed_timeout_seconds": (Number, None),
        "cpu_distributed_timeout_seconds": (Number, None),
        "prefill_context_parallel_size": (int, 1),
        "ray_workers_use_nsight": (bool, False),
        "enable_batch_sharded_sampling": (bool | None, None),
        "enable_hc_sp": (bool, False),
        "enable_nccl_comm_suspend": (bool, False),
        "enable_shm_tensor_arena": (bool, False),
    },
    "Micro-batching (dual batch overlap)": {
        "enable_dbo": (bool, False),
        "ubatch_size": (int, 0),
        "dbo_decode_token_threshold": (int, 32),
        "dbo_prefill_token_threshold": (int, 512),
    },
    "Load balancing of experts (EPLB), and a changing number of their ranks": {
        "enable_eplb": (bool, False),
        "eplb_config": (Json, {}),
        "enable_elastic_ep": (bool, False),
        "elastic_ep_max_dp_size": (Number, None),
    },
    "Fault tolerance of data and expert parallelism": {
        "enable_fault_tolerance": (bool, False),
        "fault_tolerance_config": (Json, {}),
    },
    "Transfer of weights between engines": {"weight_transfer_config": (Json | None, None)},
    "Custom scheduler, worker or model classes (use plugin kinds and extensions)": {
        "scheduler_cls": (Text, None),
        "worker_cls": (str, "auto"),
        "worker_extension_cls": (str, ""),
        "model_class_overrides": (Json, {}),
        "max_num_partial_prefills": (int, 1),
        "max_long_partial_prefills": (int, 1),
        "additional_config": (Json, {}),
    },
    "Further limits of the scheduler": {
        "long_prefill_token_threshold_adaptive": (bool, False),
        "max_num_active_seqs": (Number, None),
        "prefill_schedule_interval": (int, 1),
        "watermark": (float, 0.0),
    },
    "Adapters of other shapes, and a choice of their targets": {
        "lora_target_modules": (Texts, None),
        "enable_mixed_moe_lora_format": (bool, False),
        "enable_moe_shared_loras": (bool, False),
        "max_lora_cls_labels": (Number, None),
    },
    "System fingerprints in answers": {
        "fingerprint_mode": (str, "full"),
        "fingerprint_value": (Text, None),
    },
    "Watermarks in generated text": {"watermark_config": (Json | None, None)},
    "Routed experts and sampling masks in answers": {
        "aux_output_config": (Json, {}),
        "enable_return_routed_experts": (bool, False),
        "return_sampling_mask": (bool, False),
    },
    "Replay of recorded tokens (`--journal` records plans and results)": {
        "enable_trace_replay": (bool, False),
    },
    "Budgets of thoughts and their tokens by flag": {"reasoning_config": (Json | None, None)},
    "Other ways of putting an engine to sleep": {
        "sleep_mode_backend": (str, "cumem"),
        "sleep_mode_offload_cudagraph": (bool, False),
        "sleep_preserve_parameter_names": (list[str], []),
    },
    "Profiling and further metrics": {
        "show_hidden_metrics_for_version": (Text, None),
        "enable_layerwise_nvtx_tracing": (bool, False),
        "enable_mfu_metrics": (bool, False),
        "enable_logging_iteration_details": (bool, False),
    },
}
"""Options by missing feature, as (type, vLLM's default)."""
