"""Models: finding, building, loading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from core.contracts.attention import AttentionBackend, ForwardBatch
    from core.contracts.ops import OpTable
    from core.contracts.parallel import ParallelGroup, Pipeline
    from core.contracts.quantization import QuantMethod
    from core.model_spec.decoder import DecoderSpec
    from core.model_spec.kv import LayerKV
    from core.model_spec.pooling import SentenceFacts


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
    sentence: SentenceFacts | None = None
    """What sentence-transformers' files say, where the model comes with them: it is for pooling
    then.
    """
    origin: str = "checkpoint"
    """Said in error blocks: checkpoint, hub id, scripted."""


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What a model is built with; layers take from it what they need and keep no more."""

    dtype: torch.dtype
    device: str
    attention: AttentionBackend
    quant: QuantMethod
    ops: OpTable
    """The implementation chosen for every op (`core.contracts.ops`)."""
    group: ParallelGroup
    """The tensor-parallel group of this rank; size 1 when layers are not split."""
    pipeline: Pipeline
    """The stage of this rank; the only one when layers are not shared out."""
    conv_state_dtype: str = "auto"
    """What recurrent layers keep of the last tokens; auto: the model's dtype."""
    state_dtype: str = "auto"
    """What they keep of all tokens; auto: as `conv_state_dtype`, float32 where that is auto, too.
    """
    kv_dtype: str = "auto"
    """What attention caches, in the words of `--kv-cache-dtype`; auto: as `quant` says, or the
    model's dtype.
    """
    kv_scaled: bool = False
    """Cached vectors of eight bits have factors of their own, whatever the checkpoint states."""
    plain: QuantMethod | None = None
    """How the device keeps weights that `quant` leaves as they are; None: so they stay."""


class ModuleSpec(Protocol):
    """An architecture that is a module of its own instead of a `DecoderSpec`.

    One that can be split over ranks has a method `check_split(tensor, pipeline)`, like
    `DecoderSpec`. One that can be pooled is a dataclass with a field `pooling: PoolingSpec | None`,
    which comes back settled before `build`, and a field `hidden_size`; one that reads a whole
    prompt at once has `bidirectional = True`. A dataclass with the fields `max_positions` and
    `learned_positions` is told the context that is served in the first; the second limits it.
    """

    vocab_size: int

    def build(self, context: BuildContext) -> Model:
        """Return the module, weights not yet loaded."""


class Architecture(Protocol):
    """Target of a `models` entry: a function from the model's config to what it is."""

    def __call__(self, hf_config: Any) -> DecoderSpec | ModuleSpec:
        """Return the facts. Raises `ModelError` for a config it cannot serve, naming the field."""


class Model(Protocol):
    """A built model, or one stage of it, as the runner drives it (a `torch.nn.Module`).

    Optional: `update_weights(tensors)`, which fills some parameters again in the memory they have,
    and changes nothing where a name is unknown or a shape is wrong; then `times_filled` says how
    often parameters were filled, so that what was computed with others is told apart.
    `times_moved`: how often weights or caches may have got other places in memory, for who
    remembers those; whoever moves them sets it.
    """

    vocab_size: int
    kv_layers: Sequence[LayerKV]
    """One per caching layer of this stage, in the order of `bind_kv`."""

    def bind_kv(self, caches: Sequence[Any]) -> None:
        """Take the cache of each caching layer: a tensor of the attention backend's shape, or the
        parts of states (a tuple).
        """

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fill every parameter.

        Raises `ModelError` naming missing, unexpected and misshapen tensors.
        """

    def __call__(self, batch: ForwardBatch) -> torch.Tensor:
        """Return hidden states [num_tokens, hidden] for the tokens of one step.

        Stages receive from the one before and send to the one behind in here
        (`BuildContext.pipeline`).
        """


class GeneratingModel(Model, Protocol):
    """A model that tokens are sampled from."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [n, vocab] in float32 for n selected hidden states. Only the last stage is
        asked.

        A model with a second parameter `tokens` is told by it which tokens of the step these are,
        as indices [n] or a slice; None: all in their order.
        """


class PoolingModel(Model, Protocol):
    """A model that was built with a `PoolingSpec`; it is not asked for logits."""

    def pooled(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 [n, numbers]: what the layers behind the pooler make of pooled hidden
        states.
        """


class WeightLoader(Protocol):
    """Yields a checkpoint's tensors. Constructed with (source, config).

    Optional: `headers()`, which yields the same on the device meta, so that a plan reads no weight;
    `reading`, the file that `tensors` is at, for messages.
    """

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor), memory-mapped where possible.

        Raises `ModelError` naming file and fault.
        """

    def total_bytes(self) -> int:
        """Return the bytes `tensors` will yield, for the progress bar; 0 if unknown."""
