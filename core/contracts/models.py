"""Models: sources, building, loading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from core.contracts.attention import AttentionBackend, ForwardBatch
    from core.model_spec.decoder import DecoderSpec
    from core.model_spec.kv import LayerKV
    from core.model_spec.op_table import OpTable
    from core.model_spec.parallel import ParallelGroup, Pipeline
    from core.model_spec.pooling import SentenceFacts
    from core.model_spec.quant_method import QuantMethod


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that was found, before any weight is read."""

    name: str
    """The model as the user wrote it; also the default served name."""
    architecture: str
    """Entry of kind `models` that builds it (HF `architectures[0]`)."""
    hf_config: Any
    """The transformers config, or any object with the attributes the
    architecture reads.
    """
    path: str | None = None
    """Local folder with weights and tokenizer, if there is one."""
    identity: str = ""
    """Revision or content hash; part of every prefix cache key."""
    max_model_len: int = 2048
    """Maximum context length that the model declares."""
    checkpoint_dtype: str = "float32"
    quantization: str | None = None
    """Quantization method that the checkpoint's config declares."""
    eos_token_ids: tuple[int, ...] = ()
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters from generation_config.json."""
    tokenizer: str = "hf"
    """Entry of kind `tokenizers` for `--tokenizer-mode auto`."""
    weight_loader: str = "safetensors"
    """Entry of kind `weight_loaders` for `--load-format auto`."""
    sentence: SentenceFacts | None = None
    """Contents of sentence-transformers files; present for pooling models
    that have them.
    """
    origin: str = "checkpoint"
    """Kind of source in error messages: checkpoint, hub id, scripted."""


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The arguments for building a model's layers."""

    dtype: torch.dtype
    device: str
    attention: AttentionBackend
    quant: QuantMethod
    ops: OpTable
    """The selected implementation of every op."""
    group: ParallelGroup
    """Tensor-parallel group of this rank; size 1 without tensor
    parallelism.
    """
    pipeline: Pipeline
    """Pipeline stage of this rank; the only one without pipeline
    parallelism.
    """
    conv_state_dtype: str = "auto"
    """Dtype of convolution states in recurrent layers; auto: the model's
    dtype.
    """
    state_dtype: str = "auto"
    """Dtype of their other states; auto: as `conv_state_dtype`, or float32 if
    that is auto.
    """
    kv_dtype: str = "auto"
    """`--kv-cache-dtype`; auto: chosen by `quant`, or the model's dtype."""
    kv_scaled: bool = False
    """True: every cached eight-bit vector has a scale of its own."""
    plain: QuantMethod | None = None
    """The device's layout of unquantized weights; None: as stored."""


class ModuleSpec(Protocol):
    """An architecture that is a module of its own instead of a `DecoderSpec`.

    Optional: `check_split(tensor, pipeline)`, as of `DecoderSpec`, if it supports
    several ranks. For pooling: a dataclass with the fields `pooling: PoolingSpec |
    None`, set before `build`, and `hidden_size`; `bidirectional = True` if it reads
    whole prompts. With the fields `max_positions` and `learned_positions` the first
    receives the served context length, which the second limits.
    """

    vocab_size: int

    def build(self, context: BuildContext) -> Model:
        """Return the module, without weights."""


class Architecture(Protocol):
    """Target of a `models` entry: a function from the model's config to its
    spec.
    """

    def __call__(self, hf_config: Any) -> DecoderSpec | ModuleSpec:
        """Return the spec. Raises `ModelError` naming a config field it does
        not support.
        """


class Model(Protocol):
    """A built model, or one pipeline stage of it (a `torch.nn.Module`).

    Optional: `update_weights(tensors)` loads new values in place, and changes nothing
    if a name is unknown or a shape differs. `weights_version` then counts such loads,
    to distinguish results of older weights. `storage_version` counts moves of weights
    or caches to other addresses; the code that moves them increments it.
    """

    vocab_size: int
    kv_layers: Sequence[LayerKV]
    """The KV layers of this stage, in the order of `bind_kv`."""

    def bind_kv(self, caches: Sequence[Any]) -> None:
        """Receive the cache of each KV layer: a tensor, or a tuple of recurrent states."""

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load every parameter.

        Raises `ModelError` naming missing, unexpected and misshapen tensors.
        """

    def __call__(self, batch: ForwardBatch) -> torch.Tensor:
        """Return hidden states [num_tokens, hidden] for the tokens of one step.

        Pipeline stages receive and send in here (`BuildContext.pipeline`).
        """


class GeneratingModel(Model, Protocol):
    """A model with a language-model head."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [n, vocab] in float32 for n hidden states. Last stage
        only.

        A second parameter `tokens` receives their token indices in the step: [n], a
        slice, or None for all tokens in order.
        """


class PoolingModel(Model, Protocol):
    """A model that was built with a `PoolingSpec`; its `logits` is never
    called.
    """

    def pooled(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 [n, size]: the pooling head's output for n pooled hidden states."""


class WeightLoader(Protocol):
    """Yields a checkpoint's tensors. Constructed with (source, config).

    Optional: `headers()`, the same on the meta device, for a memory plan without
    reading weights; `reading`, the file that `tensors` is in, for messages;
    `select(reads)`: leaves others on meta.
    """

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor), memory-mapped if possible.

        Raises `ModelError` naming the file.
        """

    def total_bytes(self) -> int:
        """Return the total bytes of `tensors`, for the progress bar; 0 if unknown."""
