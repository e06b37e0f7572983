"""Token embedding and output head, split over ranks along the vocabulary; the head may share the
embedding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from core.contracts.part import Part
from core.models.layers.kept import KeptLayer, method_of, plain_method, put_onto
from core.models.layers.linear import PlainLinear, Tokens
from core.models.layers.weights import WeightMap, empty_parameter, place

if TYPE_CHECKING:
    from core.contracts import BuildContext, LinearMethod


class VocabAdapter(Protocol):
    """Adds to what an embedding or a head gives, for this rank's part of the vocabulary."""

    def __call__(
        self, layer: nn.Module, x: torch.Tensor, out: torch.Tensor, tokens: Tokens | None = None
    ) -> torch.Tensor:
        """Return the changed output, before the ranks' are put together. Changing `out` in place is
        allowed.

        x: token ids [n] of an embedding, which may be another rank's; hidden states [n, hidden] of
        a head. `layer.parts` has this rank's rows of the vocabulary, by the checkpoint prefix of
        the weights. `tokens`: as `Adapter`.
        """


class VocabWeight(KeptLayer):
    """This rank's rows of a [vocab, hidden] matrix; the last rank may have fewer than it has room
    for.
    """

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
        part = Part(
            pieces=pieces, columns_in=slice(0, hidden), out_features=vocab, in_features=hidden
        )
        self.parts = {prefix: part}
        self.method = put_onto(
            method or PlainLinear(), lambda: plain_method(context, "head", prefix) or PlainLinear()
        )
        self.method.create(self, hidden, self.num_rows, context.dtype)
        self.expect(weights, prefix, part)


class Embedding(VocabWeight):
    """Token ids to vectors."""

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
        """`is_head`: a head multiplies by its rows."""
        method = method_of(context.quant, "embedding", prefix)
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
    """Hidden states to logits, float32, over the whole vocabulary."""

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
        unless_stored: bool = False,
        bias: bool = False,
        row: str = "",
    ) -> None:
        """`unless_stored`: it is tied where the checkpoint has no head of its own.

        `row`: a bias that may be stored.
        """
        super().__init__()
        self._vocab = vocab
        self._group = context.group
        self._widen = context.ops.widen
        self.adapter = None

        def own(expected: WeightMap) -> VocabWeight:
            method = method_of(context.quant, "head", prefix) or plain_method(
                context, "head", prefix
            )
            return VocabWeight(vocab, hidden, context, expected, prefix, method)

        self.rows: VocabWeight = tied_to or own(weights)
        self.parts = dict.fromkeys([prefix], *self.rows.parts.values())
        self.prefixes = {name: part.target for name, part in self.parts.items()}
        apart = WeightMap()

        def untie(tensor: torch.Tensor) -> None:
            if not apart.shapes():
                with torch.device(context.device):
                    self.rows = own(apart)
            apart.load([(f"{prefix}.weight", tensor)])

        if unless_stored:
            weights.add_instead(f"{prefix}.weight", (vocab, hidden), untie, of=())
        whole = empty_parameter(vocab, dtype=context.dtype) if bias or row else None
        self.bias: nn.Parameter | None
        self.register_parameter("bias", whole)
        if whole is not None and row:
            whole.data.zero_()
            weights.add_instead(row, (1, vocab), lambda tensor: place(whole, tensor[0]), of=())
        elif whole is not None:
            weights.add(f"{prefix}.bias", (vocab,), lambda tensor: place(whole, tensor))

    def forward(self, hidden: torch.Tensor, tokens: Tokens | None = None) -> torch.Tensor:
        """Return [n, vocab] float32; `tokens` says of which tokens of the step, where not of all in
        their order.
        """
        out = self.rows.method.apply(self.rows, hidden)
        if self.adapter is not None:
            out = (
                self.adapter(self, hidden, out)
                if tokens is None
                else self.adapter(self, hidden, out, tokens)
            )
        logits = self._widen(self._group.all_gather(out)[:, : self._vocab])
        return logits if self.bias is None else logits + self.bias.float()
