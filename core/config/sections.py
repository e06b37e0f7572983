"""The engine's configuration: one frozen dataclass per section. Plain data,
validated once.

A field's annotation is the type of its flag; the docstring below is its text in help
and docs. None means automatic: `core.engine.resolve` returns a configuration with the
resolved value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from core.config.values import ContextSize, Range, Size
from core.errors import ConfigError

StateDtype = Literal["auto", "float32", "float16", "bfloat16"]
MAX_COUNT: Final = 1 << 24
"""Upper bound of counts of tokens, requests and restarts."""
MAX_BYTES: Final = 1 << 50
YEAR_S: Final = 366 * 24 * 3600.0
LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The model, and how it is interpreted."""

    model: str = "default"
    """Local folder, hub id, or a plugin's model name; default: the model that
    a plugin provides.
    """
    served_model_name: list[str] | None = None
    """Model names that the API accepts; answers carry the first one, and `*`
    matches any text. Default: the model as given.
    """
    runner: str = "auto"
    """Task: generate tokens, or pooling (embed, classify, score); auto: the
    model's own task.
    """
    tokenizer: str | None = None
    """Folder or hub id of the tokenizer; default: the model's."""
    tokenizer_mode: str = "auto"
    """Tokenizer plugin; auto selects the one that fits the model."""
    skip_tokenizer_init: bool = False
    """No tokenizer: prompts must be token ids, outputs are token ids."""
    chat_template: str | None = None
    """Chat template: a file, the template itself, or the name of a template
    of the model or of the engine; default: the model's.
    """
    dtype: Literal["auto", "float32", "float", "bfloat16", "float16", "half"] = "auto"
    """Dtype of weights and activations; auto follows the checkpoint and the
    platform.
    """
    max_model_len: Annotated[ContextSize, Range(-1, MAX_COUNT)] | None = None
    """Maximum length of prompt plus output, in tokens; default (or -1, auto):
    that of the model.
    """
    max_logprobs: Annotated[int, Range(-1, MAX_COUNT)] = 20
    """Maximum log-probabilities per position that a request may set; -1: no
    limit.
    """
    logprobs_mode: LogprobsMode = "raw_logprobs"
    """Reported log-probabilities: before or after logits processors and
    temperature.
    """
    seed: Annotated[int, Range(-(2**63), 2**63 - 1)] = 0
    """Seed from which requests without one derive theirs."""
    revision: str | None = None
    """Branch, tag or commit on the hub, for every file of the model."""
    hf_token: bool | str | None = None
    """Hub token; true: the stored one. HF_TOKEN works as well."""
    hf_overrides: dict[str, Any] = field(default_factory=dict)
    """Values that override the model's config.json, as JSON."""
    trust_remote_code: bool = False
    """Run the Python code of a tokenizer without tokenizer.json. Model code is never run."""
    generation_config: str = "auto"
    """Sampling defaults; auto: those of the model; vllm: neutral ones; or a
    folder with generation_config.json.
    """
    override_generation_config: dict[str, Any] = field(default_factory=dict)
    """Values that override the sampling defaults."""
    model_impl: str = "auto"
    """Model implementation; auto: the architecture's own entry, else a
    generic one; native: only the former; or the name of a generic entry (transformers).
    """
    quantization: str | None = None
    """Quantization method; default: that of the checkpoint."""
    enforce_eager: bool = False
    """Disable CUDA graphs and compilation."""

    def __post_init__(self) -> None:
        if self.served_model_name is not None and not all(self.served_model_name or [""]):
            raise ConfigError(
                "--served-model-name holds no usable name; give at least one, none of them empty."
            )
        if self.max_model_len == 0:
            raise ConfigError(
                f"--max-model-len {self.max_model_len} leaves no room for a token; give at least "
                "2, or -1 for automatic."
            )


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """Loading of weights."""

    load_format: str = "auto"
    """Weight loader plugin; auto: safetensors files, dummy: random
    weights.
    """
    download_dir: str | None = None
    """Folder of hub downloads; default: the hub library's cache."""
    ignore_patterns: list[str] = field(default_factory=lambda: ["original/**/*"])
    """Patterns of hub files that are not downloaded."""
    use_tqdm_on_load: bool = True
    """Show a progress bar while weights load (on a terminal)."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The KV cache."""

    block_size: Annotated[int, Range(1, 1024)] = 16
    """Tokens per block."""
    num_gpu_blocks_override: Annotated[int, Range(1, 1 << 31)] | None = None
    """Exact number of KV blocks, regardless of memory."""
    kv_cache_memory_bytes: Annotated[Size, Range(1, MAX_BYTES)] | None = None
    """Exact size of the KV cache in bytes; per rank with tensor
    parallelism.
    """
    gpu_memory_utilization: Annotated[float, Range(0.001, 1)] = 0.9
    """Share of device memory that the engine may use, on devices with their
    own memory.
    """
    enable_prefix_caching: bool = True
    """Reuse the KV cache of equal prompt prefixes."""
    prefix_caching_hash_algo: Literal["sha256"] = "sha256"
    """Hash function of block keys."""
    kv_cache_dtype: Literal[
        "auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"
    ] = "auto"
    """Dtype of the KV cache; auto: the model's dtype. fp8 is fp8_e4m3."""
    calculate_kv_scales: bool = False
    """Store a scale per cached fp8 vector, instead of the checkpoint's scale
    per head or 1; int8 always has them.
    """
    mamba_block_size: Annotated[int, Range(1, MAX_COUNT)] = 512
    """Tokens between two recurrent states in the prefix cache."""
    mamba_cache_dtype: StateDtype = "auto"
    """Dtype of convolution states in recurrent layers; auto: the model's."""
    mamba_ssm_cache_dtype: StateDtype = "auto"
    """Dtype of other states in recurrent layers; auto: mamba_cache_dtype, or
    float32 if that is auto.
    """


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Scheduling of requests."""

    max_num_batched_tokens: Annotated[Size, Range(1, MAX_COUNT)] | None = None
    """Token budget of one step; default: 2048 (offline 4096), at least the
    context length without chunked prefill.
    """
    max_num_scheduled_tokens: Annotated[Size, Range(1, MAX_COUNT)] | None = None
    """Lower token budget of one step, draft tokens included; default:
    max_num_batched_tokens.
    """
    max_num_seqs: Annotated[int, Range(1, 1 << 14)] | None = None
    """Maximum number of running requests; default: 128 (offline 256)."""
    enable_chunked_prefill: bool = True
    """Split long prompts over several steps."""
    long_prefill_token_threshold: Annotated[int, Range(0, MAX_COUNT)] = 0
    """Maximum prompt tokens of one request per step; 0: the token budget."""
    max_mixed_prefill_tokens: Annotated[int, Range(0, MAX_COUNT)] | None = None
    """Maximum prompt tokens of a step with decode rows, and of each resumed request in it;
    0: the token budget. Default: 512 on a CPU server, else 0.
    """
    scheduling_policy: str = "fcfs"
    """Order of requests: fcfs, priority, or a plugin's policy."""
    async_scheduling: bool | None = None
    """Schedule the next step while one runs; default: on with pipeline stages, or if the
    platform overlaps with the host; off on one CPU.
    """
    max_waiting: Annotated[int, Range(0, MAX_COUNT)] | None = None
    """Maximum number of waiting requests; further ones are refused. Default: no limit."""
    max_num_queued_reqs: Annotated[int, Range(0, MAX_COUNT)] | None = None
    """Maximum number of waiting and running requests.

    Further ones are refused. Default: no limit.
    """
    max_num_queued_tokens: Annotated[Size, Range(0, MAX_BYTES)] | None = None
    """Number of prompt tokens of requests without an output.

    At this number further ones are refused.
    """
    stream_interval: Annotated[int, Range(1, MAX_COUNT)] = 1
    """Tokens per streamed chunk."""


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """Parallelism."""

    distributed_executor_backend: str | None = None
    """Executor plugin; default: uni (the worker in the engine's process), or
    mp (one process per rank) with several ranks.
    """
    tensor_parallel_size: Annotated[int, Range(1, 1024)] = 1
    """Number of ranks that split every layer."""
    pipeline_parallel_size: Annotated[int, Range(1, 1024)] = 1
    """Number of pipeline stages that share the layers."""
    data_parallel_size: Annotated[int, Range(1, 1024)] = 1
    """Number of engines, each with the whole model and a KV cache of its own."""


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Attention."""

    attention_backend: str = "auto"
    """Attention backend plugin; auto selects the fastest that fits."""


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """The device."""

    device: str = "auto"
    """Platform plugin; auto selects the first available one."""
    num_threads: Annotated[int, Range(1, 1024)] | None = None
    """CPU threads of a worker; default: the cores usable by this process."""


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Supervision of the engine process, and request timeouts."""

    disable_frontend_multiprocessing: bool = False
    """Run the engine in the serving process: one process less, but no restart
    after a crash.
    """
    heartbeat_timeout: Annotated[float, Range(4, YEAR_S)] = 10.0
    """Seconds without a heartbeat after which the engine process is killed
    and restarted.
    """
    step_timeout: Annotated[float, Range(1, YEAR_S)] = 300.0
    """Maximum duration of a step in seconds; a slower engine is killed and
    restarted.
    """
    max_restarts: Annotated[int, Range(0, MAX_COUNT)] = 20
    """Maximum consecutive engine restarts without a token of a suspected request."""
    request_timeout: Annotated[float, Range(0.001, YEAR_S)] | None = None
    """Seconds after which a request fails; default: no limit."""


@dataclass(frozen=True, slots=True)
class ObservabilityConfig:
    """Logs and metrics."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of log lines."""
    log_format: Literal["text", "json"] = "text"
    """Format of log lines: text, or one JSON object per line."""
    enable_log_requests: bool = False
    """Log each request (its id and sizes, never its text)."""
    disable_log_stats: bool = False
    """Disable metrics."""

    def __post_init__(self) -> None:
        if self.enable_log_requests and self.disable_log_stats:
            raise ConfigError(
                "--enable-log-requests needs the numbers that --disable-log-stats switches off; "
                "leave one out."
            )


@dataclass(frozen=True, slots=True)
class PluginsConfig:
    """Selection of plugins."""

    plugins: list[str] = field(default_factory=list)
    """Selection: NAME, "NAME>=1.2", +NAME, no:NAME, none, ./file.py,
    pkg.module.
    """
    plugins_lock: str | None = None
    """Lock file; any other set of plugins is refused."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The whole configuration; can be printed and sent to another process."""

    model: ModelConfig = field(default_factory=ModelConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    service: ServiceConfig = field(default_factory=ServiceConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    plugins: PluginsConfig = field(default_factory=PluginsConfig)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Values of the plugins' options, by option name."""
