"""The engine's configuration: one frozen dataclass per concern. Plain data, validated once.

A field's annotation gives its flag its type, the string beneath gives help and docs their text. None means
"decide automatically"; `core.engine.resolve` decides and returns a configuration without such gaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from core.config.values import ContextSize, Size
from core.errors import ConfigError

StateDtype = Literal["auto", "float32", "float16", "bfloat16"]
LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and how it is interpreted."""

    model: str = "default"
    """Local folder, hub id, or a name that a plugin knows; default: the model a plugin brings for it."""
    served_model_name: list[str] | None = None
    """Names the API answers to; the first is shown. Default: the model as given."""
    runner: str = "auto"
    """What the model is run for: generate tokens, or pooling (embed, classify, score); auto: what it was made for."""
    tokenizer: str | None = None
    """Folder or hub id of the tokenizer; default: the model's."""
    tokenizer_mode: str = "auto"
    """Tokenizer plugin; auto takes the one that fits the model."""
    skip_tokenizer_init: bool = False
    """No tokenizer: prompts must be token ids, outputs are token ids."""
    chat_template: str | None = None
    """Chat template: a file, the template itself, or the name of one of the model's; default: the model's."""
    dtype: Literal["auto", "float32", "float", "bfloat16", "float16", "half"] = "auto"
    """Type of weights and activations; auto follows the checkpoint and the platform."""
    max_model_len: ContextSize | None = None
    """Longest prompt plus output, in tokens; default (or -1, auto): what the model states."""
    max_logprobs: int = 20
    """Most log-probabilities a request may ask for per position; -1: no limit."""
    logprobs_mode: LogprobsMode = "raw_logprobs"
    """Distribution that log-probabilities report: before or after processors and temperature."""
    seed: int = 0
    """Seed from which requests without one get theirs."""
    revision: str | None = None
    """Branch, tag or commit on the hub, for every file of the model."""
    hf_token: bool | str | None = None
    """Hub token; true: the stored one. HF_TOKEN works as well."""
    hf_overrides: dict[str, Any] = field(default_factory=dict)
    """Values laid over the model's config.json, as JSON."""
    trust_remote_code: bool = False
    """Run Python code from the model's repository. Off: such code is never imported."""
    generation_config: str = "auto"
    """auto: sampling defaults from the model; vllm: neutral ones; or a folder with generation_config.json."""
    override_generation_config: dict[str, Any] = field(default_factory=dict)
    """Sampling defaults laid over the model's."""
    model_impl: str = "auto"
    """auto: the architecture's own entry, else one for any architecture; native; or such an entry (transformers)."""
    quantization: str | None = None
    """Quantization method; default: what the checkpoint states."""
    enforce_eager: bool = False
    """No graph capture and no compilation."""

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("--model is empty; give a local folder or a hub id, or leave it out.")
        if self.served_model_name is not None and not all(self.served_model_name or [""]):
            raise ConfigError("--served-model-name holds no usable name; give at least one, none of them empty.")
        _at_least(self, max_logprobs=-1)
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"--seed {self.seed} does not fit 64 bits; use -2**63 to 2**63-1.")
        if self.max_model_len is not None and self.max_model_len != -1 and self.max_model_len < 1:
            raise ConfigError(
                f"--max-model-len {self.max_model_len} leaves no room for a token; give at least 2, or -1 for automatic."
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

    block_size: int = 16
    """Tokens per block."""
    num_gpu_blocks_override: int | None = None
    """Exact number of blocks, whatever the memory."""
    kv_cache_memory_bytes: Size | None = None
    """Exact bytes of the KV cache; of each rank, where ranks split every layer."""
    gpu_memory_utilization: float = 0.9
    """Share of device memory the engine may take, where the device's memory is its own."""
    enable_prefix_caching: bool = True
    """Reuse the cache of equal prompt beginnings."""
    prefix_caching_hash_algo: Literal["sha256"] = "sha256"
    """Hash of the prefix chain."""
    mamba_block_size: int = 512
    """Tokens between two states of recurrent layers that prefix caching keeps."""
    mamba_cache_dtype: StateDtype = "auto"
    """Dtype of recurrent layers' convolution states; auto: the model's."""
    mamba_ssm_cache_dtype: StateDtype = "auto"
    """Dtype of recurrent layers' other states; auto: mamba_cache_dtype, float32 where that is auto."""

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.block_size > 1024:
            raise ConfigError(f"--block-size {self.block_size} is out of range; use 1 to 1024, usually 16.")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"--gpu-memory-utilization {self.gpu_memory_utilization} is not a share; use more than 0, at most 1."
            )
        _at_least(self, mamba_block_size=1)
        for name in ("num_gpu_blocks_override", "kv_cache_memory_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {value} leaves no cache; give at least 1.")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How requests share the steps."""

    max_num_batched_tokens: Size | None = None
    """Token budget of one step; default 2048 (offline 4096), raised to the context length without chunking."""
    max_num_seqs: int | None = None
    """Most requests running at once; default 128 (offline 256)."""
    enable_chunked_prefill: bool = True
    """Split long prompts over steps."""
    long_prefill_token_threshold: int = 0
    """Most prompt tokens of one request per step; 0: the budget."""
    scheduling_policy: str = "fcfs"
    """Order of requests: fcfs, priority, or a plugin's."""
    async_scheduling: bool | None = None
    """Schedule the next step while one runs; default: what the executor gains by."""
    max_waiting: int | None = None
    """Requests that may wait; more are refused. Default: no limit."""
    journal: str | None = None
    """File that records plans and results, for exact replay."""
    stream_interval: int = 1
    """Tokens per streamed chunk."""

    def __post_init__(self) -> None:
        _at_least(self, max_num_batched_tokens=1, max_num_seqs=1, long_prefill_token_threshold=0)
        _at_least(self, max_waiting=0, stream_interval=1)


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """How the model is spread."""

    distributed_executor_backend: str | None = None
    """Executor plugin; default: uni, the worker in the engine's process, or mp, one process per rank, with several."""
    tensor_parallel_size: int = 1
    """Ranks that split every layer."""
    pipeline_parallel_size: int = 1
    """Ranks that split the layers."""

    def __post_init__(self) -> None:
        _at_least(self, tensor_parallel_size=1, pipeline_parallel_size=1)


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
    num_threads: int | None = None
    """CPU threads of a worker; default: the cores this process may use."""

    def __post_init__(self) -> None:
        _at_least(self, num_threads=1)


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """How the engine is kept alive, and how long requests may take."""

    disable_frontend_multiprocessing: bool = False
    """Run the engine in the process that serves it: one process less, but nothing survives its death."""
    heartbeat_timeout: float = 10.0
    """Seconds without a sign of life after which the engine's process is killed and started again."""
    step_timeout: float = 300.0
    """Longest step, in seconds; an engine that takes more is killed and started again."""
    max_restarts: int = 20
    """Deaths of the engine in a row, without a token between them, after which the server gives up."""
    request_timeout: float | None = None
    """Seconds after which a request is ended with an error; default: no limit."""

    def __post_init__(self) -> None:
        for name, low in (("heartbeat_timeout", 4), ("step_timeout", 1), ("request_timeout", 0.001)):
            value = getattr(self, name)
            if value is not None and not value >= low:
                raise ConfigError(f"--{name.replace('_', '-')} {value:g} is too short; use at least {low} seconds.")
        _at_least(self, max_restarts=0)


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
                "--enable-log-requests needs the numbers that --disable-log-stats switches off; leave one out."
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


def _at_least(section: object, **lows: int) -> None:
    for name, low in lows.items():
        value = getattr(section, name)
        if value is not None and value < low:
            raise ConfigError(f"--{name.replace('_', '-')} {value} is too small; use at least {low}.")
