"""What users of pooling models get, field-compatible with vLLM's.

A tensor is made when it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from core.errors import RequestFailed
from core.types.pooling import Pooled

if TYPE_CHECKING:
    import torch

    from core.types.outputs import RequestOutput


@dataclass(slots=True)
class PoolingOutput:
    """What the model made of one prompt."""

    pooled: Pooled

    @property
    def data(self) -> torch.Tensor:
        """The numbers: [size], or [tokens, size]."""
        import torch  # lazy: slow to import, and a server needs none

        if not self.pooled.data:
            return torch.empty(self.pooled.shape)
        return torch.frombuffer(bytearray(self.pooled.data), dtype=torch.float32).view(
            self.pooled.shape
        )


@dataclass(slots=True)
class EmbeddingOutput:
    """One embedding."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Numbers in it."""
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    """One probability (or score) for each label."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """Number of labels."""
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    """How near two texts are."""

    score: float


Out = TypeVar("Out", PoolingOutput, EmbeddingOutput, ClassificationOutput, ScoringOutput)


@dataclass
class PoolingRequestOutput(Generic[Out]):
    """The end of one request; `outputs` is what it asked for."""

    request_id: str
    outputs: Out
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True

    @classmethod
    def of(cls, output: RequestOutput) -> PoolingRequestOutput[PoolingOutput]:
        """Return what the engine's own output says. Raises `RequestFailed` with what went wrong."""
        if output.pooled is None:
            why = output.error or "it was ended before it was computed"
            raise RequestFailed(f"request {output.request_id}: {why}.")
        ids = output.prompt_token_ids or []
        cached = output.num_cached_tokens or 0
        return PoolingRequestOutput(output.request_id, PoolingOutput(output.pooled), ids, cached)


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """The end of a request for an embedding."""


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """The end of a request for scores of labels."""


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """The end of a request for one score."""
