"""What `LLM` offers of models that are pooled, under vLLM's names; the runner does the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.contracts.runners import Calls
    from core.types.pooled import (
        ClassificationRequestOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        ScoringRequestOutput,
    )


class PoolingCalls:
    """Parameters and options are the runner's: docs/pooling.md lists them.

    Raises `InvalidRequest` where it has none.
    """

    _calls: Callable[[], Calls]
    """Returns the runner's; set by whoever has one."""

    def encode(
        self, prompts: Any, *params: Any, **options: Any
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Return tensors for prompts: what the model was made for, or `pooling_task`."""
        return self._calls().encode(prompts, *params, **options)

    def embed(self, prompts: Any, *params: Any, **options: Any) -> list[EmbeddingRequestOutput]:
        """Return one embedding for each prompt."""
        return self._calls().embed(prompts, *params, **options)

    def classify(
        self, prompts: Any, *params: Any, **options: Any
    ) -> list[ClassificationRequestOutput]:
        """Return the probabilities of the labels for each prompt."""
        return self._calls().classify(prompts, *params, **options)

    def reward(
        self, prompts: Any, *params: Any, **options: Any
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Return the scores of each prompt's tokens, or of its steps where the model knows steps."""
        return self._calls().reward(prompts, *params, **options)

    def score(self, data_1: Any, data_2: Any, **options: Any) -> list[ScoringRequestOutput]:
        """Return how near each pair is: as a cross-encoder says, else the cosine of their
        embeddings.
        """
        return self._calls().score(data_1, data_2, **options)
