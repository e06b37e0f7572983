"""How layers keep their weights: linear ones, experts, embedding and head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from core.contracts.part import Part


class LinearMethod(Protocol):
    """How one linear layer keeps its weights and multiplies by them.

    One instance per layer. A checkpoint tensor of the layer arrives through `load` under its own
    suffix ("weight", "qweight", "scales", ...), whole, and beside it what of it is this rank's and
    where that goes.

    Optional: `optional_suffixes`, tensors that a checkpoint may have; `other_names`, other suffixes
    of required ones; `shape(suffix, part)`, which returns the shape that a tensor must have in the
    checkpoint, or None where that is not known, so that others are refused by name.
    `facts(prefix)`: who has these four for the tensors of one checkpoint prefix, where parts of a
    fused layer are stored unlike. `onto(plain)`: called before all else, with a function that
    returns a fresh method of the device for plain weights; for methods that unpack what is stored
    (`builtin_plugins.quant_methods.stored`). Of a device's own method: `keeps(grouping)`, who keeps and multiplies by
    numbers in groups as they are stored, or None.
    """

    suffixes: tuple[str, ...]
    """Tensor suffixes this method reads besides "bias"; the layer keeps that one by itself."""

    def create(
        self, layer: torch.nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register the parameters on `layer`, sharded sizes given.

        `layer.parts` has what will be loaded, by checkpoint prefix: a fused layer has several, in
        the order of its rows.
        """

    def load(self, layer: torch.nn.Module, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Copy this rank's part of a checkpoint's tensor into rows `part.target` of the layer's
        parameters.

        May come again after `finish`, for all tensors of the layer or some, when weights are
        updated.
        """

    def finish(self, layer: torch.nn.Module) -> None:
        """Called when tensors are in, after each load that had some of the layer's: repack,
        transpose, free.

        One that gives up what `load` writes to raises `ModelError` when it is loaded again.
        """

    def apply(self, layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T, [..., out_features], without bias."""


class EmbeddingMethod(LinearMethod, Protocol):
    """How an embedding keeps its rows. A head that is tied to it multiplies by them."""

    def embed(self, layer: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows [n, hidden] of numbers [n], counted from this rank's first."""


class ExpertsMethod(Protocol):
    """How the experts of one layer keep their weights and multiply by them.

    One instance per layer. What is said of tensors and parts by `LinearMethod` holds here; of the
    two products "gate_up" and "down", `part.matrix` names the one that a tensor belongs to.

    Optional: `shape`, `facts`, `onto` and `keeps`, as there (`layer.parts` has each expert's);
    `product(layer, matrix, x, experts)`, each row's product with the matrix of its expert, [n,
    rows]: without it the experts take no adapter.
    """

    suffixes: tuple[str, ...]
    """Tensor suffixes of one expert's weights; empty: it reads none that stand alone."""
    endings: tuple[str, ...]
    """What the names of tensors with all experts' weights have behind the name of the product ("",
    "_blocks").
    """

    def create(
        self, layer: torch.nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype
    ) -> None:
        """Register the parameters on `layer`; `width` is this rank's, and there are gates where
        `layer.gated`.
        """

    def load(self, layer: torch.nn.Module, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Copy this rank's part of one expert's tensor, or of all experts' when `part.num_experts`
        says so.

        `suffix` is one of `suffixes` or of `endings`. Rows of the layer are those of one expert.
        """

    def finish(self, layer: torch.nn.Module) -> None:
        """Called when tensors are in, like a linear method's."""

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return [n, hidden]: for each token the sum of what its experts [n, k] give, times their
        shares.

        `layer.activation` names the function between the products, `layer.bias` is added before it
        where there is one.
        """


class QuantMethod(Protocol):
    """Decides how layers keep their weights.

    Constructed with the checkpoint's quantization config, None where it states none, and with the
    engine's config where it takes two arguments. One that cannot do without the former raises
    `ModelError`.

    Optional: `experts(prefix) -> ExpertsMethod | None`, `embedding(prefix) -> EmbeddingMethod |
    None`, `head(prefix) -> LinearMethod | None` for what is no linear layer (None: weights as they
    are); `kv_dtype(prefix) -> str | None`, what the attention with this prefix caches (None: the
    model's dtype); `stored_as(dtypes: Mapping[str, torch.dtype])`, told before all others the type
    of each tensor of the checkpoint, where its loader knows; `reads: tuple[str, ...]`, the names of
    other methods whose checkpoints it reads as well. Its entry gives other names of the same thing.
    """

    name: str

    def linear(self, prefix: str) -> LinearMethod:
        """Return a fresh method for the layer whose weights have this prefix.

        A fused layer is asked for once, by the prefix of its first rows: `q_proj` stands for
        q_proj, k_proj and v_proj, `gate_proj` for gate_proj and up_proj. `create` is given the
        layer, whose `parts` has them all.
        """
