"""Token embedding and LM head, split over ranks along the vocabulary, and per-layer embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from core.model_spec.weight_shard import WeightShard
from core.models.layers.linear import Linear, PlainLinear, Slice, Tokens
from core.models.layers.mlp import make_activation
from core.models.layers.norm import make_norm
from core.models.layers.quantization import (
    QuantizedLayer,
    layer_method,
    plain_method,
    with_plain_method,
)
from core.models.layers.weights import WeightMap, assign_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.layer import PerLayerInputSpec
    from core.model_spec.names import WeightNames
    from core.model_spec.quant_method import LinearMethod
    from core.models.layers.weights import WeightMap


class VocabAdapter(Protocol):
    """Adapter (LoRA) of an embedding or a head, for this rank's part of the vocabulary."""

    def __call__(
        self, layer: nn.Module, x: torch.Tensor, out: torch.Tensor, tokens: Tokens | None = None
    ) -> torch.Tensor:
        """Return the adapted output, before the gather over ranks; may modify `out` in place.

        x: token ids [n] of an embedding, which may belong to other ranks, or hidden states
        [n, hidden] of a head. `layer.parts` maps a checkpoint prefix to this rank's vocabulary
        rows. `tokens`: as in `Adapter`.
        """


class VocabWeight(QuantizedLayer):
    """This rank's rows of a [vocab, hidden] matrix; the last rank may have padding rows."""

    def __init__(
        self,
        vocab: int,
        hidden: int,
        context: BuildContext,
        weights: WeightMap,
        prefix: str,
        method: LinearMethod | None = None,
    ) -> None:
        super().__init__()
        self.group = context.group
        self.ops = context.ops
        self.num_rows = -(-vocab // self.group.size)
        self.first_row = self.group.rank * self.num_rows
        own = slice(min(self.first_row, vocab), min(self.first_row + self.num_rows, vocab))
        pieces = ((own, slice(0, own.stop - own.start)),)
        part = WeightShard(
            pieces=pieces, columns_in=slice(0, hidden), out_features=vocab, in_features=hidden
        )
        self.parts = {prefix: part}
        self.method = with_plain_method(
            method or PlainLinear(), lambda: plain_method(context, "head", prefix) or PlainLinear()
        )
        self.method.create(self, hidden, self.num_rows, context.dtype)
        self.expect(weights, prefix, part)


class Embedding(VocabWeight):
    """Token embedding."""

    adapter: VocabAdapter | None

    def __init__(
        self,
        vocab: int,
        hidden: int,
        context: BuildContext,
        weights: WeightMap,
        prefix: str,
        *,
        is_head: bool = False,
    ) -> None:
        """`is_head`: a tied head uses the weight, too."""
        method = layer_method(context.quant, "embedding", prefix)
        if method is None and is_head:
            method = plain_method(context, "head", prefix)
        super().__init__(vocab, hidden, context, weights, prefix, method)
        self.adapter = None
        self.prefixes = {name: part.target for name, part in self.parts.items()}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [n, hidden] for int64 ids [n]."""
        if self.group.size == 1:
            out = self._rows(ids)
            return out if self.adapter is None else self.adapter(self, ids, out)
        local = ids - self.first_row
        others = (local < 0) | (local >= self.num_rows)
        out = self._rows(local.clamp(0, self.num_rows - 1)).masked_fill(others.unsqueeze(-1), 0)
        if self.adapter is not None:
            out = self.adapter(self, ids, out)
        return self.group.all_reduce(out)

    def _rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.method.embed(self, ids)  # type: ignore[no-any-return]


class Head(nn.Module):
    """LM head: float32 logits over the whole vocabulary."""

    adapter: VocabAdapter | None

    def __init__(
        self,
        vocab: int,
        hidden: int,
        context: BuildContext,
        weights: WeightMap,
        prefix: str,
        *,
        tied_to: VocabWeight | None = None,
        bias: bool = False,
        row: str = "",
        transform: nn.Module | None = None,
    ) -> None:
        """`tied_to`: the embedding, which is the head unless the checkpoint stores another one.
        `row`: name of an optional bias. `transform`: dense layer before the head, in float32.
        """
        super().__init__()
        self.transform = transform
        self._vocab = vocab
        self._group = context.group
        self._widen = context.ops.widen
        self.adapter = None

        def own(expected: WeightMap) -> VocabWeight:
            method = layer_method(context.quant, "head", prefix) or plain_method(
                context, "head", prefix
            )
            return VocabWeight(vocab, hidden, context, expected, prefix, method)

        self.rows: VocabWeight = tied_to or own(weights)
        self.parts = dict.fromkeys([prefix], *self.rows.parts.values())
        self.prefixes = {name: part.target for name, part in self.parts.items()}
        if tied_to is not None:
            self._expect_stored(
                tied_to, own, weights, (vocab, hidden), f"{prefix}.weight", context.device
            )
        self.bias: nn.Parameter | None
        self.register_parameter("bias", None)
        if bias or row:
            self._expect_bias(empty_parameter(vocab, dtype=context.dtype), weights, prefix, row)

    def _expect_stored(
        self,
        tied_to: VocabWeight,
        own: Callable[[WeightMap], VocabWeight],
        weights: WeightMap,
        shape: tuple[int, int],
        name: str,
        device: str,
    ) -> None:
        """Accept a stored head instead of the embedding; one that equals it is dropped.

        In a checkpoint without an embedding the head is the embedding, too.
        """
        apart = WeightMap()
        stored: torch.Tensor | None = None

        def untie(tensor: torch.Tensor) -> None:
            nonlocal apart, stored
            stored = tensor
            if self.rows is tied_to:
                apart = WeightMap()
                with torch.device(device):
                    self.rows = own(apart)
            if name in apart.shapes():
                apart.load([(name, tensor)])
            else:  # a quantization method expects other tensors
                self.rows = tied_to

        def tie_equal() -> None:
            nonlocal stored
            stored = None
            if self.rows is not tied_to and _are_equal(self.rows, tied_to):
                self.rows = tied_to

        weights.add_alternative(name, shape, untie, of=())
        for prefix in tied_to.parts:
            weights.add_fallback(f"{prefix}.weight", lambda: stored)
        weights.after_load(tie_equal)

    def _expect_bias(self, whole: nn.Parameter, weights: WeightMap, prefix: str, row: str) -> None:
        """Expect the bias of the whole vocabulary; zero without the optional tensor `row`."""
        self.register_parameter("bias", whole)
        if not row:
            weights.add(f"{prefix}.bias", whole.shape, lambda tensor: assign_weight(whole, tensor))
            return
        whole.data.zero_()
        weights.add_alternative(
            row, (1, self._vocab), lambda tensor: assign_weight(whole, tensor[0]), of=()
        )

    def forward(self, hidden: torch.Tensor, tokens: Tokens | None = None) -> torch.Tensor:
        """Return [n, vocab] float32; `tokens` selects tokens of the step, None: all in order."""
        if self.transform is not None:
            hidden = self.transform(hidden.float()).to(hidden.dtype)
        out = self.rows.method.apply(self.rows, hidden)
        if self.adapter is not None:
            out = (
                self.adapter(self, hidden, out)
                if tokens is None
                else self.adapter(self, hidden, out, tokens)
            )
        logits = self._widen(self._group.all_gather(out)[:, : self._vocab])
        return logits if self.bias is None else logits + self.bias.float()


def _are_equal(first: nn.Module, second: nn.Module) -> bool:
    """Return whether two layers hold the same weights; without memory they count as equal."""
    one = dict(first.named_parameters()) | dict(first.named_buffers())
    other = dict(second.named_parameters()) | dict(second.named_buffers())
    return one.keys() == other.keys() and all(
        tensor.is_meta or (tensor.shape == other[name].shape and torch.equal(tensor, other[name]))
        for name, tensor in one.items()
    )


class PerLayerInputs(nn.Module):
    """Per-layer embeddings of all layers: a lookup plus a projection of the token embedding."""

    def __init__(
        self,
        spec: PerLayerInputSpec,
        num_layers: int,
        hidden: int,
        names: WeightNames,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        width = num_layers * spec.size
        self.table = Embedding(spec.vocab_size, width, context, weights, names.layer_embed)
        self.project = Linear(context, weights, names.layer_project, hidden, [Slice("out", width)])
        self.norm = make_norm(spec.norm, spec.size, context, weights, names.layer_project_norm)
        self._shape = (-1, num_layers, spec.size)
        self._scale = spec.size**0.5
        self._project_scale = hidden**-0.5

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return [n, layers, size] for token ids and their embeddings."""
        known = self.table(ids).view(self._shape) * self._scale
        computed = self.norm((self.project(x) * self._project_scale).view(self._shape))
        return (known + computed) * 0.5**0.5  # type: ignore[no-any-return]


class PerLayerInput(nn.Module):
    """Adds one layer's gated per-layer embedding to the residual stream."""

    def __init__(
        self,
        spec: PerLayerInputSpec,
        hidden: int,
        names: WeightNames,
        layer: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self.gate = Linear(
            context, weights, f"{layer}.{names.layer_gate}", hidden, [Slice("gate", spec.size)]
        )
        self.out = Linear(
            context, weights, f"{layer}.{names.layer_out}", spec.size, [Slice("out", hidden)]
        )
        self.norm = make_norm(
            spec.norm, hidden, context, weights, f"{layer}.{names.layer_out_norm}"
        )
        self.activate = make_activation(
            spec.activation, gated=False, prefix="", context=context, weights=weights
        )

    def forward(self, x: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """Return the residual stream [n, hidden] after the addition; `own` is [n, size]."""
        result: torch.Tensor = x + self.norm(self.out(self.activate(self.gate(x)) * own))
        return result


def expect_table(
    size: tuple[int, int], name: str, context: BuildContext, weights: WeightMap
) -> nn.Parameter:
    """Return the table of an embedding that is added to the tokens' own."""
    table = empty_parameter(*size, dtype=context.dtype)
    weights.add(f"{name}.weight", table.shape, lambda tensor: assign_weight(table, tensor))
    return table
