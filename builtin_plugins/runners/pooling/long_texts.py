"""Embedding of texts longer than the context: the mean of the embeddings of their chunks."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import Any

from core.api import InvalidRequest, PoolingParams
from core.api.outputs import Pooled, PoolingOutput, PoolingRequestOutput

Outputs = Sequence[PoolingRequestOutput[PoolingOutput]]


@dataclass(frozen=True, slots=True)
class TextSplitter:
    """Splits too long prompts into chunks (enable_chunked_processing)."""

    size: int
    """Maximum tokens of a chunk: the context length."""
    max_tokens: int | None
    """Maximum tokens of a text; None: no limit."""

    def split(self, prompt: Any, params: PoolingParams) -> list[tuple[Any, PoolingParams]]:
        """Return the requests of a prompt's chunks. Raises `InvalidRequest` for a too long
        prompt.
        """
        ids: list[int] = prompt.token_ids
        if self.max_tokens is not None and len(ids) > self.max_tokens:
            raise InvalidRequest(
                "prompt",
                f"has {len(ids)} tokens, and max_embed_len of --pooler-config allows "
                f"{self.max_tokens}; shorten it.",
            )
        chunks = [ids[start : start + self.size] for start in range(0, len(ids), self.size)] or [
            ids
        ]
        found = [replace(prompt, token_ids=chunk) for chunk in chunks]
        return [(found[0], params), *((chunk, params.clone(unpooled=0)) for chunk in found[1:])]


def mean_of_chunks(outputs: Outputs) -> PoolingRequestOutput[PoolingOutput]:
    """Return the mean of the embeddings of a text's chunks, weighted by their tokens."""
    if len(outputs) == 1:
        return outputs[0]
    weights = [len(output.prompt_token_ids) for output in outputs]
    columns = zip(*(output.outputs.pooled.numbers() for output in outputs), strict=True)
    mean = array("f", (sum(map(mul, weights, column)) / sum(weights) for column in columns))
    first = outputs[0]
    return PoolingRequestOutput(
        first.request_id,
        PoolingOutput(Pooled(mean.tobytes(), first.outputs.pooled.shape)),
        [token for output in outputs for token in output.prompt_token_ids],
        sum(output.num_cached_tokens for output in outputs),
    )
