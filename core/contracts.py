"""The contracts: one protocol per kind. An entry's target, once imported, must satisfy its kind's protocol.

Torch appears in annotations only, so that reading a contract never imports it. Every protocol has a
conformance suite of the same name in `core.testing.conformance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import argparse

    import torch

    from core.config import EngineConfig
    from core.kv_spec import KVLayout, KVSpec, LayerKV
    from core.model_spec import DecoderSpec
    from core.step import StepPlan, StepResult, WorkerInfo
    from core.types import SamplingParams


# --- where it runs ---------------------------------------------------------------------------------------


class Platform(Protocol):
    """One kind of device. Constructed without arguments; must be cheap until `start`."""

    name: str
    device: str
    """What `torch.device` takes: "cpu", "cuda"."""

    def is_available(self) -> bool:
        """Say whether this machine has such a device."""

    def start(self, config: EngineConfig) -> None:
        """Prepare this process (threads, memory settings). Called once per worker, before the model is built."""

    def pick_dtype(self, checkpoint_dtype: str) -> str:
        """Return the dtype `--dtype auto` means for a checkpoint stored in `checkpoint_dtype`."""

    def kv_memory_bytes(self, config: EngineConfig, weight_bytes: int) -> int:
        """Return the bytes the KV cache may take after `weight_bytes` of weights are loaded."""

    def facts(self) -> Mapping[str, Any]:
        """Return facts `Entry.when` may name: device, isa, memory."""


class Executor(Protocol):
    """Runs workers. Results come back in the order of the plans."""

    depth: int
    """Plans that may be in flight at once; 1 means no scheduling ahead."""

    def start(self) -> WorkerInfo:
        """Build the model on every worker. May take long; called once."""

    def allocate(self, layout: KVLayout) -> None:
        """Allocate the KV cache on every worker."""

    def submit(self, plan: StepPlan) -> None:
        """Queue one plan; never more than `depth` uncollected ones."""

    def collect(self) -> StepResult:
        """Wait for the oldest plan in flight and return its result. Raises if the step as a whole failed."""

    def shutdown(self) -> None:
        """Release everything; safe to call twice and in any state."""


# --- models ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that was found: what it is, before any weight is read."""

    name: str
    """What the user typed; served under this name unless told otherwise."""
    architecture: str
    """Name of the entry of kind `models` that builds it (HF `architectures[0]`)."""
    hf_config: Any
    """transformers' config object, or any object with the attributes the architecture reads."""
    path: str | None = None
    """Local folder with weights and tokenizer, where there is one."""
    identity: str = ""
    """Revision or content hash; part of every prefix-cache key."""
    max_model_len: int = 2048
    """Longest context the model states."""
    checkpoint_dtype: str = "float32"
    quantization: str | None = None
    """Name of the checkpoint's quantization method, where its config states one."""
    eos_token_ids: tuple[int, ...] = ()
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters from the model's generation_config.json."""
    tokenizer: str = "hf"
    """Entry of kind `tokenizers` that reads its tokenizer under `--tokenizer-mode auto`."""
    weight_loader: str = "safetensors"
    """Entry of kind `weight_loaders` under `--load-format auto`."""
    origin: str = "checkpoint"
    """Said in error blocks: checkpoint, hub id, scripted."""


class ModuleSpec(Protocol):
    """An architecture that is a module of its own instead of a `DecoderSpec`."""

    vocab_size: int

    def build(self, config: EngineConfig) -> Model:
        """Return the module, weights not yet loaded, on the meta or CPU device."""


class Architecture(Protocol):
    """Target of a `models` entry: a function from the model's config to what it is."""

    def __call__(self, hf_config: Any) -> DecoderSpec | ModuleSpec:
        """Return the facts. Raises `ModelError` for a config it cannot serve, naming the field."""


class Model(Protocol):
    """A built model, as the runner drives it (a `torch.nn.Module`)."""

    vocab_size: int
    kv_layers: Sequence[LayerKV]
    """One per caching layer, in the order of `bind_kv`."""

    def bind_kv(self, caches: Sequence[torch.Tensor]) -> None:
        """Take the cache tensor of each caching layer; shapes are the attention backend's."""

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fill every parameter. Raises `ModelError` naming missing, unexpected and misshapen tensors."""

    def __call__(self, batch: ForwardBatch) -> torch.Tensor:
        """Return hidden states [num_tokens, hidden] for the tokens of one step."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [n, vocab] in float32 for n selected hidden states."""


class WeightLoader(Protocol):
    """Yields a checkpoint's tensors. Constructed with (source, config)."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor), memory-mapped where possible. Raises `ModelError` naming file and fault."""

    def total_bytes(self) -> int:
        """Return the bytes `tensors` will yield, for the progress bar; 0 if unknown."""


class LinearMethod(Protocol):
    """How one linear layer keeps its weights and multiplies by them.

    One instance per layer. A checkpoint tensor of the layer arrives through `load` under its own suffix
    ("weight", "qweight", "scales", ...), already cut for this rank along the axis the layer names.
    """

    suffixes: tuple[str, ...]
    """Tensor suffixes this method reads besides "bias"."""

    def create(self, layer: torch.nn.Module, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        """Register the parameters on `layer`, sharded sizes given."""

    def load(self, layer: torch.nn.Module, suffix: str, tensor: torch.Tensor, rows: slice) -> None:
        """Copy one checkpoint tensor into output rows `rows` of the layer's parameters."""

    def finish(self, layer: torch.nn.Module) -> None:
        """Called once after all tensors are in: repack, transpose, free."""

    def apply(self, layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T, [..., out_features], without bias."""


class QuantMethod(Protocol):
    """Decides the `LinearMethod` of every linear layer. Constructed with the checkpoint's quantization config."""

    name: str

    def linear(self, prefix: str) -> LinearMethod:
        """Return a fresh method for the layer with this weight prefix."""


# --- attention -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """What is fixed about one attention layer."""

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    window: int | None = None
    """Tokens visible, the current one included."""
    chunk: int | None = None
    softcap: float | None = None


@dataclass(slots=True)
class AttentionInputs:
    """One KV group in one step, as the runner prepares it. Lists are on the host: nothing is read back."""

    query_starts: list[int]
    """Cumulative token counts, length num_seqs + 1."""
    kv_lens: list[int]
    """Tokens in the cache per sequence once this step's are written."""
    block_table: torch.Tensor
    """[num_seqs, max_blocks] int32. Entries outside a window are stale: never read them."""
    slots: torch.Tensor
    """[num_tokens] int64: block * block_size + offset to write each token's key and value to."""
    block_size: int
    spec: KVSpec


class AttentionBackend(Protocol):
    """Attention over paged keys and values. Constructed without arguments, one per worker."""

    graph_support: str
    """"none", "decode" or "full": which steps a captured graph may hold."""

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return the shape of one layer's cache; its bytes are num_blocks * block_size * spec.token_bytes."""

    def prepare(self, inputs: AttentionInputs) -> Any:
        """Plan one step of one group once; what it returns is given to `attend` in each of its layers."""

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        plan: Any,
    ) -> torch.Tensor:
        """Write key and value to the cache, return attention [num_tokens, heads, head_size].

        query is [num_tokens, heads, head_size], key and value [num_tokens, kv_heads, head_size]. Causal.
        """


@dataclass(slots=True)
class ForwardBatch:
    """The tokens of one step, on the device, and what layers need to know about them."""

    input_ids: torch.Tensor
    """[num_tokens] int64."""
    positions: torch.Tensor
    """[num_tokens] int64."""
    attention: Sequence[Any]
    """Per caching layer: what the attention backend prepared for its group."""
    rows: list[int]
    """Row of each sequence in the step."""
    starts: list[int]
    counts: list[int]
    prompt_lens: list[int]
    token_ids: torch.Tensor
    """[max_num_seqs, max_model_len] int64: every row's tokens, sampled ones included, by position."""


# --- sampling --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SamplerContext:
    """What a logits processor is constructed with."""

    vocab_size: int
    max_num_seqs: int
    max_model_len: int
    device: str


@dataclass(slots=True)
class SampleRows:
    """The rows of one `apply` call, in the order of the logits."""

    rows: list[int]
    prompt_lens: list[int]
    lengths: list[int]
    """Known tokens per row, the one being sampled not included (so also its position)."""
    row_index: torch.Tensor
    """[n] int64, `rows` on the device."""
    length_index: torch.Tensor
    """[n] int64, `lengths` on the device."""
    prompt_index: torch.Tensor
    """[n] int64, `prompt_lens` on the device."""
    token_ids: torch.Tensor
    """[max_num_seqs, max_model_len] int64 token history by row and position; valid below `lengths`."""


class LogitsProcessor(Protocol):
    """Changes logits before a token is chosen; batch-level. Constructed with a `SamplerContext`.

    The kernel calls `apply` with exactly the rows that `wants` said yes to, so a processor never sees, and
    can never harm, a request that did not ask for it. Per-row state must follow from sampling parameters
    and tokens alone: after preemption or a restart `added` is called again with the tokens so far.
    Must not read device values back to the host.
    """

    params: tuple[str, ...]
    """Fields of `SamplingParams` it serves; without it, requests that set them are refused."""
    argmax_invariant: bool
    """True: never changes which token is best, so it is skipped for greedy rows and runs after temperature."""

    def wants(self, sampling: SamplingParams) -> bool:
        """Say whether this request needs the processor."""

    def added(self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int) -> None:
        """A request that `wants` it took `row`; `token_ids` are its prompt and tokens so far."""

    def removed(self, row: int) -> None:
        """The request in `row` has left."""

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Return the changed logits [n, vocab] float32; changing them in place is allowed."""


# --- scheduling ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """What a scheduling policy may know of a request."""

    request_id: str
    priority: int
    arrival_s: float
    num_prompt_tokens: int
    num_preemptions: int


class SchedulingPolicy(Protocol):
    """Orders requests: a pure function. The core owns blocks and budget, so no policy can corrupt them.

    Constructed without arguments. Ties are broken by order of arrival.
    """

    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        """Return the sort key: the smallest runs first, the largest is preempted first."""


class SchedulerExtension(Protocol):
    """The scheduler half of a feature. Every method is optional; those present are called.

    `request` is the scheduler's own record; extensions read `request_id`, `num_tokens`, `sampling`.
    """

    name: str

    def may_start(self, request: Any) -> bool:
        """Return False to park the request outside the queue until `Scheduler.wake(request_id)`."""

    def cached_tokens(self, request: Any, num_local: int) -> int:
        """Return tokens available beyond the `num_local` found in the prefix cache (a remote cache)."""

    def extra_tokens(self, request: Any) -> int:
        """Return tokens to plan beyond the known ones (drafts)."""

    def planned(self, plan: StepPlan) -> bytes | None:
        """See the plan before it leaves; return the payload for the worker half. No side effect on it."""

    def finished(self, request: Any) -> bool:
        """The request ended; return True to keep its blocks until `Scheduler.release(request_id)`."""

    def result(self, payload: bytes) -> None:
        """Take what the worker half returned."""


class RunnerExtension(Protocol):
    """The worker half of a feature. Every method is optional; those present are called."""

    name: str

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """See the batch before the model runs."""

    def before_sample(self, logits: torch.Tensor, rows: SampleRows, payload: bytes | None) -> torch.Tensor:
        """Return the logits to sample from."""

    def after_sample(self, payload: bytes | None) -> bytes | None:
        """Return the payload for the scheduler half."""


# --- text ------------------------------------------------------------------------------------------------


class Tokenizer(Protocol):
    """Text to ids and back. Constructed with (source, config)."""

    vocab_size: int
    """Ids are below this."""
    eos_token_id: int | None
    special_ids: frozenset[int]
    chat_template: str | None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return token ids; special tokens written in the text become their ids."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return text; bytes that are not (yet) UTF-8 come out as U+FFFD."""

    def token_text(self, token_id: int) -> str:
        """Return the token as the vocabulary spells it."""


class ChatRenderer(Protocol):
    """Turns messages into the model's prompt text. Constructed with (tokenizer, source, config)."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt. Raises `InvalidRequest` naming the message that cannot be rendered."""


# --- serving ---------------------------------------------------------------------------------------------


class RouteGroup(Protocol):
    """A set of HTTP routes. Constructed with (engine, config): an `AsyncLLM` and the configuration."""

    def routes(self) -> Sequence[Any]:
        """Return Starlette or FastAPI routes; paths must not collide with another group's."""


class Server(Protocol):
    """Accepts connections and serves the chosen route groups. Constructed with (engine, config, groups)."""

    def run(self) -> int:
        """Serve until told to stop; return the exit status."""


@dataclass(slots=True)
class StepStats:
    """What one engine step did, for metric sinks."""

    step_s: float
    num_running: int
    num_waiting: int
    kv_usage: float
    """Used share of KV blocks, 0 to 1."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    queried_tokens: int = 0
    """Prompt tokens looked up in the prefix cache."""
    preemptions: int = 0
    finished: Mapping[str, int] = field(default_factory=dict)
    """Requests that ended in this step, by finish reason."""


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Times of one finished request, in seconds."""

    finish_reason: str
    prompt_tokens: int
    generated_tokens: int
    e2e_s: float
    ttft_s: float | None
    """Time to first token; None when there was none."""
    queue_s: float | None = None


class MetricSink(Protocol):
    """Takes measurements. Constructed with (config). One that keeps raising is quarantined, not fatal."""

    def step(self, stats: StepStats) -> None:
        """Take the numbers of one engine step."""

    def request(self, stats: RequestStats) -> None:
        """Take the numbers of one finished request."""


class Command(Protocol):
    """A subcommand of `engine`. Constructed without arguments."""

    help: str
    takes_engine_options: bool
    """True: the engine's and plugins' options are added to its parser and a config is built."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments."""

    def run(self, context: Any) -> int:
        """Run and return the exit status; `context` is `core.cli.CommandContext`."""


OpImplementation = Callable[..., Any]
"""Target of an `op_impls` entry: a function with the signature of its op in `core.ops.reference`."""

