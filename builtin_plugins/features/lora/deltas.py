"""An adapter's delta of one module on this rank, in plain torch: the reference of kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from core.model_spec.parallel import ParallelGroup

Tensor = torch.Tensor


class Delta(Protocol):
    """One adapter's delta of one module. Changes `out` in place, for rows of this adapter."""

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the delta."""

    def add(self, layer: Any, x: Tensor, out: Tensor, *given: Any) -> Tensor:
        """Return `out` plus the adapter's delta for x; both hold the adapter's rows only."""


@dataclass(frozen=True, slots=True)
class Factors:
    """A low-rank product for some rows of a layer's product: out[:, rows] += (x @ a.T) @ b.T."""

    rows: slice
    a: Tensor
    """[rank, inputs]"""
    b: Tensor
    """[rows, rank], scaled."""
    group: ParallelGroup | None = None
    """Set if both factors are sharded: ranks gather or all-reduce the intermediate."""
    gathers: bool = False
    """Whether ranks shard the rank axis of A (all-gather); else they shard the rows of B."""

    def between(self, x: Tensor) -> Tensor:
        """Return x @ a.T, combined over all ranks."""
        narrow = x @ self.a.T
        if self.group is None:
            return narrow
        if self.gathers:
            return self.group.all_gather(narrow.contiguous())
        return self.group.all_reduce(narrow)


@dataclass(slots=True)
class LinearDelta:
    """Delta of a linear layer, which may be fused from several checkpoint weights."""

    parts: list[Factors] = field(default_factory=list)
    bias: Tensor | None = None
    """[out]: added to every row."""
    stacked: Tensor | None = None
    """[sum of the parts' ranks, inputs]: reads x once for all parts."""

    def finish(self) -> None:
        """Stack the A factors of all parts."""
        if self.parts and all(part.group is None for part in self.parts):
            self.stacked = torch.cat([part.a for part in self.parts])
            at = 0
            for index, part in enumerate(self.parts):
                own = self.stacked[at : at + len(part.a)]
                self.parts[index] = Factors(part.rows, own, part.b)
                at += len(part.a)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the delta."""
        first = [part.a for part in self.parts] if self.stacked is None else [self.stacked]
        return [
            *first,
            *(part.b for part in self.parts),
            *(() if self.bias is None else (self.bias,)),
        ]

    def add(self, layer: Any, x: Tensor, out: Tensor, *given: Any) -> Tensor:
        """Add each part's product, then the bias."""
        x = x.to(self.parts[0].a.dtype) if self.parts else x
        between = None if self.stacked is None else x @ self.stacked.T  # [n, all parts' ranks]
        at = 0
        for part in self.parts:
            if between is None:
                narrow = part.between(x)
            else:
                narrow = between[:, at : at + len(part.a)]
                at += len(part.a)
            out[:, part.rows] += (narrow @ part.b.T).to(out.dtype)
        return out if self.bias is None else out.add_(self.bias)


@dataclass(slots=True)
class VocabDelta:
    """Delta of an embedding or head: this rank's rows of the vocabulary."""

    rows: int
    a: Tensor | None = None
    """[rank, hidden]"""
    b: Tensor | None = None
    """[own vocabulary, rank], scaled."""
    weight: Tensor | None = None
    """[own vocabulary, hidden]: replaces the model's weight."""
    bias: Tensor | None = None
    """[own vocabulary]: added to logits."""

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the delta."""
        return [each for each in (self.a, self.b, self.weight, self.bias) if each is not None]

    def add(self, layer: Any, x: Tensor, out: Tensor, *given: Any) -> Tensor:
        """Change embeddings of ids x [n], or logits of hidden states x [n, hidden]."""
        return self._embed(layer, x, out) if x.dtype == torch.int64 else self._score(x, out)

    def _embed(self, layer: Any, ids: Tensor, out: Tensor) -> Tensor:
        local = ids - getattr(layer, "first_row", 0)
        # The others belong to another rank
        own = ((local >= 0) & (local < self.rows)).unsqueeze(-1)
        local = local.clamp(0, max(0, self.rows - 1))
        if not self.rows:
            return out
        if self.weight is not None:
            out = torch.where(own, self.weight[local].to(out.dtype), out)
        if self.a is not None and self.b is not None:
            out = out + torch.where(own, self.b[local] @ self.a, 0).to(out.dtype)
        return out

    def _score(self, hidden: Tensor, out: Tensor) -> Tensor:
        if self.weight is not None:
            out[:, : self.rows] = (hidden.to(self.weight.dtype) @ self.weight.T).to(out.dtype)
        if self.a is not None and self.b is not None:
            out[:, : self.rows] += (hidden.to(self.a.dtype) @ self.a.T @ self.b.T).to(out.dtype)
        if self.bias is not None:
            out[:, : self.rows] += self.bias
        return out


@dataclass(frozen=True, slots=True)
class ExpertFactors:
    """Low-rank products for some rows of one matrix of all experts."""

    rows: slice
    a: Tensor
    """[experts, rank, inputs]"""
    b: Tensor
    """[experts, rows, rank], scaled."""


@dataclass(slots=True)
class ExpertsDelta:
    """Delta of the experts of a layer."""

    parts: dict[str, list[ExpertFactors]] = field(default_factory=dict)
    """By matrix, "gate_up" or "down"."""

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the delta."""
        return [
            each for parts in self.parts.values() for part in parts for each in (part.a, part.b)
        ]

    def add(self, layer: Any, x: Tensor, out: Tensor, *given: Any) -> Tensor:
        """Add to the products of one matrix; `given` has the matrix and each row's expert."""
        matrix, experts = given
        for part in self.parts.get(matrix, ()):
            for index in experts.unique().tolist():
                mine = (experts == index).nonzero()[:, 0]
                narrow = x[mine].to(part.a.dtype) @ part.a[index].T
                out[mine, part.rows] += (narrow @ part.b[index].T).to(out.dtype)
        return out


@dataclass(slots=True)
class LatentDelta:
    """Delta of the weight that expands latents to keys and values, in absorbed form."""

    a: Tensor
    """[rank, latent]"""
    key: Tensor
    """[heads, key_size, rank], scaled."""
    value: Tensor
    """[heads, value_size, rank], scaled."""

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the delta."""
        return [self.a, self.key, self.value]

    def add(self, layer: Any, x: Tensor, out: Tensor, *given: Any) -> Tensor:
        """Change latent queries or values; x and out are [n, heads, ...]."""
        x = x.to(self.a.dtype)
        if given[0] == "key":
            return out + (torch.einsum("nhk,hkr->nhr", x, self.key) @ self.a).to(out.dtype)
        return out + torch.einsum("nhr,hvr->nhv", x @ self.a.T, self.value).to(out.dtype)
