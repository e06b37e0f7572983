"""Quantization methods: how linear layers, experts, embeddings and heads
store their weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from core.model_spec.weight_shard import WeightShard


class QuantizedInputs(Protocol):
    """Kernels that compute the input of a quantized layer and quantize it in one
    launch.

    Rows are what the layer's `apply` takes instead of a tensor [n, in_features].
    """

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> Any:
        """Return rows of the op `rms_norm`."""

    def add_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        offset: float,
    ) -> tuple[Any, torch.Tensor]:
        """Return rows of the op `add_rms_norm`, and the sum, not quantized."""

    def gated(self, x: torch.Tensor, activation: str) -> Any:
        """Return rows of activation(gate) * up for x = [n, gate | up]."""


class LinearMethod(Protocol):
    """How one linear layer stores its weights and multiplies by them. One
    instance per layer.

    `load` receives each checkpoint tensor of the layer whole, under its suffix
    ("weight", "qweight", "scales", ...), with the shard that belongs to this rank.

    Optional members:
    - `optional_suffixes`: suffixes of tensors that a checkpoint may lack.
    - `other_names`: alternative suffixes of required tensors.
    - `shape(suffix, shard)`: expected shape of a checkpoint tensor; None: unknown.
      Other shapes are refused by name.
    - `tensor_spec(prefix)`: an object with these four for one checkpoint prefix, when
      the parts of a fused layer are stored differently.
    - `use_plain_method(plain)`: called first, with a function that returns a fresh
      method of the device for plain weights; for methods that dequantize
      (`builtin_plugins.quant_methods.stored`).
    - `backend_for(layout)`, on a device's own method: the backend that stores and
      multiplies numbers in this layout, or None.
    - `apply_with_bias(layer, x)`: `apply` plus `layer.bias`, where that is one launch.
    - `quantized_inputs(layer)`, after loading: the `QuantizedInputs` that write x for
      `apply`, or None.
    """

    suffixes: tuple[str, ...]
    """Tensor suffixes that this method reads; the layer handles "bias" by
    itself.
    """

    def create(
        self, layer: torch.nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register the parameters on `layer`, with this rank's sizes.

        `layer.parts` has the shards by checkpoint prefix: several, in row order, in a
        fused layer.
        """

    def load(
        self, layer: torch.nn.Module, suffix: str, tensor: torch.Tensor, shard: WeightShard
    ) -> None:
        """Copy this rank's shard of a checkpoint tensor to rows
        `shard.target` of the parameters.

        May run again after `finish` for some or all tensors, when weights are updated.
        """

    def finish(self, layer: torch.nn.Module) -> None:
        """Repack, transpose or free parameters after each load that had
        tensors of the layer.

        A method that frees the targets of `load` raises `ModelError` on a later load.
        """

    def apply(self, layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T, [..., out_features], without bias."""


class EmbeddingMethod(LinearMethod, Protocol):
    """How an embedding stores its rows. A tied head multiplies by them."""

    def embed(self, layer: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows [n, hidden] for indices [n], relative to this
        rank's first row.
        """


class ExpertsMethod(Protocol):
    """How the experts of one layer store their weights. One instance per
    layer.

    Tensors and shards are as in `LinearMethod`; `shard.matrix` is the product a tensor
    belongs to, "gate_up" or "down".

    Optional: `shape`, `tensor_spec`, `use_plain_method` and `backend_for`, as there;
    `layer.parts` has the shards of each expert. `product(layer, matrix, x, experts)`
    returns each row's product with its expert's matrix, [n, rows]; adapters require it.
    `supports_expert_map = True`: `apply` computes nothing for the expert number
    `num_experts`, which stands for experts of other ranks; without it, their shares are 0.
    """

    suffixes: tuple[str, ...]
    """Tensor suffixes of a single expert; empty: it reads no such tensors."""
    stacked_suffixes: tuple[str, ...]
    """Suffixes, after the product's name, of tensors of all experts ("",
    "_blocks").
    """

    def create(
        self, layer: torch.nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype
    ) -> None:
        """Register the parameters on `layer`; `width` is this rank's.

        With `layer.gated` there are gate weights.
        """

    def load(
        self, layer: torch.nn.Module, suffix: str, tensor: torch.Tensor, shard: WeightShard
    ) -> None:
        """Copy this rank's shard of one expert's tensor, or of all if
        `shard.num_experts` is set.

        `suffix` is one of `suffixes` or `stacked_suffixes`. Rows are those of one
        expert.
        """

    def finish(self, layer: torch.nn.Module) -> None:
        """Repack after loading, as in `LinearMethod`."""

    def apply(
        self,
        layer: torch.nn.Module,
        x: torch.Tensor,
        shares: torch.Tensor,
        experts: torch.Tensor,
    ) -> torch.Tensor:
        """Return [n, hidden]: for each token the weighted sum of its experts
        [n, k].

        `layer.activation` is the function between the products; `layer.bias`, if
        present, is added before it.
        """


class PerHeadMethod(Protocol):
    """How a matrix per head is stored: absorbed projections of latent attention, dequantized."""

    def create(
        self, layer: torch.nn.Module, heads: int, rows: int, width: int, dtype: torch.dtype
    ) -> None:
        """Register `weight` on `layer`."""

    def load(self, layer: torch.nn.Module, matrices: torch.Tensor) -> None:
        """Write the matrices [heads, rows, width], which may be a view with any strides."""

    def apply(self, layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x [n, heads, width] times each head's matrix, [n, heads, rows]."""


class QuantMethod(Protocol):
    """Chooses how the layers of a model store their weights.

    Constructed with the checkpoint's quantization config (or None) and, if it takes two
    arguments, the engine's config. Raises `ModelError` if it requires the former.

    Optional members:
    - `experts(prefix) -> ExpertsMethod | None`, `embedding(prefix) -> EmbeddingMethod |
      None`, `head(prefix) -> LinearMethod | None`; None: weights as stored.
    - `per_head(prefix) -> PerHeadMethod`, of a device's method for plain weights.
    - `kv_dtype(prefix) -> str | None`: KV cache dtype of this attention; None: the
      model's.
    - `check_used()`: called when the model is built; raises `ModelError` if the method applies to
      none of its layers.
    - `options: tuple[str, ...]`: the options of its kind (`Option.read_by`) that it reads; a set
      one that it does not read is refused.
    - `set_checkpoint_dtypes(dtypes: Mapping[str, torch.dtype])`: called first with the
      dtype of each checkpoint tensor, if the loader knows them.
    - `reads: tuple[str, ...]`: other methods; it reads their checkpoints too. Aliases
      of one method belong to its entry.
    """

    name: str

    def linear(self, prefix: str) -> LinearMethod:
        """Return a fresh method for the layer with this weight prefix.

        A fused layer uses the prefix of its first rows: `q_proj` stands for q_proj,
        k_proj and v_proj, `gate_proj` for gate_proj and up_proj. `create` gets all
        shards in `layer.parts`.
        """
