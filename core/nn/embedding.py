"""Token embedding and output head, split over ranks along the vocabulary; the head may share the embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from core.nn.weights import WeightMap, empty_parameter, fill, place

if TYPE_CHECKING:
    from core.contracts import BuildContext


class VocabWeight(nn.Module):
    """This rank's rows of a [vocab, hidden] matrix; the last rank's rows are filled up with zeros."""

    def __init__(self, vocab: int, hidden: int, context: BuildContext, weights: WeightMap, prefix: str) -> None:
        super().__init__()
        self.group = context.group
        self.num_rows = -(-vocab // self.group.size)
        self.first_row = self.group.rank * self.num_rows
        self.weight = empty_parameter(self.num_rows, hidden, dtype=context.dtype)
        weights.add(f"{prefix}.weight", (vocab, hidden), self._fill)

    def _fill(self, tensor: torch.Tensor) -> None:
        mine = tensor[self.first_row : self.first_row + self.num_rows]
        if mine.shape[0] == self.num_rows:
            place(self.weight, mine)
        else:
            self.weight.data.zero_()
            fill(self.weight.data[: mine.shape[0]], mine)


class Embedding(VocabWeight):
    """Token ids to vectors."""

    def __init__(self, vocab: int, hidden: int, context: BuildContext, weights: WeightMap, prefix: str) -> None:
        super().__init__(vocab, hidden, context, weights, prefix)
        self._embedding = context.ops.embedding

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [n, hidden] for int64 ids [n]."""
        if self.group.size == 1:
            return self._embedding(ids, self.weight)
        local = ids - self.first_row
        mine = (local >= 0) & (local < self.num_rows)
        rows = self._embedding(local.clamp(0, self.num_rows - 1), self.weight)
        return self.group.all_reduce(rows * mine.unsqueeze(-1))


class Head(nn.Module):
    """Hidden states to logits, float32, over the whole vocabulary."""

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
        """`unless_stored`: it is tied where the checkpoint has no head of its own. `row`: a bias that may be stored."""
        super().__init__()
        self._vocab = vocab
        self._group = context.group
        self._linear = context.ops.linear
        self.rows: VocabWeight = tied_to or VocabWeight(vocab, hidden, context, weights, prefix)

        def untie(tensor: torch.Tensor) -> None:
            apart = WeightMap()
            with torch.device(context.device):
                self.rows = VocabWeight(vocab, hidden, context, apart, prefix)
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

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [n, vocab] float32."""
        logits = self._group.all_gather(self._linear(hidden, self.rows.weight))[:, : self._vocab].float()
        return logits if self.bias is None else logits + self.bias.float()
