"""vLLM's spellings of flags: short ones, renamed ones, aliases and inverses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SHORT: Final[Mapping[str, str]] = {
    "api_server_count": "-asc",
    "attention_config": "-ac",
    "compilation_config": "-cc",
    "data_parallel_address": "-dpa",
    "data_parallel_backend": "-dpb",
    "data_parallel_external_lb": "-dpe",
    "data_parallel_hybrid_lb": "-dph",
    "data_parallel_multi_port_external_lb": "-dpm",
    "data_parallel_rank": "-dpn",
    "data_parallel_rpc_port": "-dpp",
    "data_parallel_size": "-dp",
    "data_parallel_size_local": "-dpl",
    "data_parallel_start_rank": "-dpr",
    "decode_context_parallel_size": "-dcp",
    "diffusion_config": "-dc",
    "enable_expert_parallel": "-ep",
    "nnodes": "-n",
    "node_rank": "-r",
    "optimization_level": "-O",
    "pipeline_parallel_size": "-pp",
    "prefill_context_parallel_size": "-pcp",
    "quantization": "-q",
    "speculative_config": "-sc",
    "tensor_parallel_size": "-tp",
}
"""Short flags of vLLM, by option. The option may belong to a plugin."""
RENAMED: Final[Mapping[str, str]] = {
    "--disable-log-requests": "--no-enable-log-requests",
    "--no-disable-log-requests": "--enable-log-requests",
}
"""Replacements of flags that still work, with a warning."""
ALIASES: Final[Mapping[str, str]] = {"--device-memory-utilization": "--gpu-memory-utilization"}
"""Further spellings of flags."""
INVERSES: Final = (("--enable-", "--disable-"), ("--disable-", "--enable-"))
"""Prefixes that vLLM pairs: `--disable-x` turns `--enable-x` off, and the other way round."""
