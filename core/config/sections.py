"""The engine's configuration: one frozen dataclass per concern. Plain data, validated once.

A field's annotation gives its flag its type, the string beneath gives help and docs their text.
None means "decide automatically"; `core.engine.resolve` decides and returns a configuration without
such gaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from core.config.values import ContextSize, Size, Within
from core.errors import ConfigError

StateDtype = Literal["auto", "float32", "float16", "bfloat16"]
MOST: Final = 1 << 24
"""Of tokens, requests, restarts: more than anybody has."""
MOST_BYTES: Final = 1 << 50
YEAR_S: Final = 366 * 24 * 3600.0
LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and how it is interpreted."""

    model: str = "default"
    """Local folder, hub id, or a name that a plugin knows; default: the model a plugin brings for
    it.
    """
    served_model_name: list[str] | None = None
    """Names the API answers to; the first is shown, a `*` in one stands for anything.

    Default: the model as given.
    """
    runner: str = "auto"
    """What the model is run for: generate tokens, or pooling (embed, classify, score); auto: what
    it was made for.
    """
    tokenizer: str | None = None
    """Folder or hub id of the tokenizer; default: the model's."""
    tokenizer_mode: str = "auto"
    """Tokenizer plugin; auto takes the one that fits the model."""
    skip_tokenizer_init: bool = False
    """No tokenizer: prompts must be token ids, outputs are token ids."""
    chat_template: str | None = None
    """Chat template: a file, the template itself, or the name of one of the model's or of those
    shipped; default: the model's.
    """
    dtype: Literal["auto", "float32", "float", "bfloat16", "float16", "half"] = "auto"
    """Type of weights and activations; auto follows the checkpoint and the platform."""
    max_model_len: Annotated[ContextSize, Within(-1, MOST)] | None = None
    """Longest prompt plus output, in tokens; default (or -1, auto): what the model states."""
    max_logprobs: Annotated[int, Within(-1, MOST)] = 20
    """Most log-probabilities a request may ask for per position; -1: no limit."""
    logprobs_mode: LogprobsMode = "raw_logprobs"
    """Distribution that log-probabilities report: before or after processors and temperature."""
    seed: Annotated[int, Within(-(2**63), 2**63 - 1)] = 0
    """Seed from which requests without one get theirs."""
    revision: str | None = None
    """Branch, tag or commit on the hub, for every file of the model."""
    hf_token: bool | str | None = None
    """Hub token; true: the stored one. HF_TOKEN works as well."""
    hf_overrides: dict[str, Any] = field(default_factory=dict)
    """Values laid over the model's config.json, as JSON."""
    trust_remote_code: bool = False
    """Run the Python code of a tokenizer that has no tokenizer.json. Code of a model is never run.
    """
    generation_config: str = "auto"
    """auto: sampling defaults from the model; vllm: neutral ones; or a folder with
    generation_config.json.
    """
    override_generation_config: dict[str, Any] = field(default_factory=dict)
    """Sampling defaults laid over the model's."""
    model_impl: str = "auto"
    """auto: the architecture's own entry, else one for any architecture; native; or such an entry
    (transformers).
    """
    quantization: str | None = None
    """Quantization method; default: what the checkpoint states."""
    enforce_eager: bool = False
    """No graph capture and no compilation."""

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
    """How weights come in."""

    load_format: str = "auto"
    """Weight loader plugin; auto: safetensors files, dummy: random weights."""
    download_dir: str | None = None
    """Where hub files go; default: the hub library's cache."""
    ignore_patterns: list[str] = field(default_factory=lambda: ["original/**/*"])
    """Files of a hub repository that are not fetched."""
    use_tqdm_on_load: bool = True
    """Show a progress bar while weights load (on a terminal)."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The KV cache."""

    block_size: Annotated[int, Within(1, 1024)] = 16
    """Tokens per block."""
    num_gpu_blocks_override: Annotated[int, Within(1, 1 << 31)] | None = None
    """Exact number of blocks, whatever the memory."""
    kv_cache_memory_bytes: Annotated[Size, Within(1, MOST_BYTES)] | None = None
    """Exact bytes of the KV cache; of each rank, where ranks split every layer."""
    gpu_memory_utilization: Annotated[float, Within(0.001, 1)] = 0.9
    """Share of device memory the engine may take, where the device's memory is its own."""
    enable_prefix_caching: bool = True
    """Reuse the cache of equal prompt beginnings."""
    prefix_caching_hash_algo: Literal["sha256"] = "sha256"
    """Hash of the prefix chain."""
    kv_cache_dtype: Literal[
        "auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"
    ] = "auto"
    """What keys and values are cached as; auto: the model's dtype. fp8 is fp8_e4m3."""
    calculate_kv_scales: bool = False
    """Give each cached vector of fp8 a factor of its own, instead of the checkpoint's for a head or
    1; int8 always has them.
    """
    mamba_block_size: Annotated[int, Within(1, MOST)] = 512
    """Tokens between two states of recurrent layers that prefix caching keeps."""
    mamba_cache_dtype: StateDtype = "auto"
    """Dtype of recurrent layers' convolution states; auto: the model's."""
    mamba_ssm_cache_dtype: StateDtype = "auto"
    """Dtype of recurrent layers' other states; auto: mamba_cache_dtype, float32 where that is auto.
    """


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How requests share the steps."""

    max_num_batched_tokens: Annotated[Size, Within(1, MOST)] | None = None
    """Token budget of one step; default 2048 (offline 4096), raised to the context length without
    chunking.
    """
    max_num_seqs: Annotated[int, Within(1, 1 << 14)] | None = None
    """Most requests running at once; default 128 (offline 256)."""
    enable_chunked_prefill: bool = True
    """Split long prompts over steps."""
    long_prefill_token_threshold: Annotated[int, Within(0, MOST)] = 0
    """Most prompt tokens of one request per step; 0: the budget."""
    max_mixed_prefill_tokens: Annotated[int, Within(0, MOST)] | None = None
    """Most prompt tokens of a step in which others get tokens; 0: the budget.

    Default: 512 where a CPU serves, else 0.
    """
    scheduling_policy: str = "fcfs"
    """Order of requests: fcfs, priority, or a plugin's."""
    async_scheduling: bool | None = None
    """Schedule the next step while one runs; default: on where the platform computes beside the
    host, off on CPUs.
    """
    max_waiting: Annotated[int, Within(0, MOST)] | None = None
    """Requests that may wait; more are refused. Default: no limit."""
    journal: str | None = None
    """File that records plans and results, for exact replay."""
    stream_interval: Annotated[int, Within(1, MOST)] = 1
    """Tokens per streamed chunk."""


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """How the model is spread."""

    distributed_executor_backend: str | None = None
    """Executor plugin; default: uni, the worker in the engine's process, or mp, one process per
    rank, with several.
    """
    tensor_parallel_size: Annotated[int, Within(1, 1024)] = 1
    """Ranks that split every layer."""
    pipeline_parallel_size: Annotated[int, Within(1, 1024)] = 1
    """Ranks that split the layers."""


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Attention."""

    attention_backend: str = "auto"
    """Attention backend plugin; auto takes the fastest that fits."""


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """Where it runs."""

    device: str = "auto"
    """Platform plugin; auto takes the first available."""
    num_threads: Annotated[int, Within(1, 1024)] | None = None
    """CPU threads of a worker; default: the cores this process may use."""


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """How the engine is kept alive, and how long requests may take."""

    disable_frontend_multiprocessing: bool = False
    """Run the engine in the process that serves it: one process less, but nothing survives its
    death.
    """
    heartbeat_timeout: Annotated[float, Within(4, YEAR_S)] = 10.0
    """Seconds without a sign of life after which the engine's process is killed and started again.
    """
    step_timeout: Annotated[float, Within(1, YEAR_S)] = 300.0
    """Longest step, in seconds; an engine that takes more is killed and started again."""
    max_restarts: Annotated[int, Within(0, MOST)] = 20
    """Deaths of the engine in a row, without a token between them, after which the server gives up.
    """
    request_timeout: Annotated[float, Within(0.001, YEAR_S)] | None = None
    """Seconds after which a request is ended with an error; default: no limit."""


@dataclass(frozen=True, slots=True)
class ObservabilityConfig:
    """What is said about what happens."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least important log lines shown."""
    log_format: Literal["text", "json"] = "text"
    """Form of log lines: for people, or one JSON object each."""
    enable_log_requests: bool = False
    """Log each request (its id and sizes, never its text)."""
    disable_log_stats: bool = False
    """No metrics."""

    def __post_init__(self) -> None:
        if self.enable_log_requests and self.disable_log_stats:
            raise ConfigError(
                "--enable-log-requests needs the numbers that --disable-log-stats switches off; "
                "leave one out."
            )


@dataclass(frozen=True, slots=True)
class PluginsConfig:
    """Which plugins."""

    plugins: list[str] = field(default_factory=list)
    """Selection: NAME, "NAME>=1.2", +NAME, no:NAME, none, ./file.py, pkg.module."""
    plugins_lock: str | None = None
    """Lock file; any other set of plugins is refused."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything, as one object that can be printed and sent to another process."""

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
    """Values of the plugins' own options, by option name."""
