"""Texts longer than the context: embedded in pieces, whose mean stands for the whole."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import Any

from core.api import InvalidRequest, Pooled, PoolingOutput, PoolingParams, PoolingRequestOutput

Outputs = Sequence[PoolingRequestOutput[PoolingOutput]]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Cuts what is too long, where that is switched on."""

    size: int
    """Most tokens of a piece: the context."""
    most: int | None
    """Most tokens of a text; None: any number."""

    def cut(self, prompt: Any, params: PoolingParams) -> list[tuple[Any, PoolingParams]]:
        """Return a prompt as the requests that are run for it.

        Raises `InvalidRequest` for one that is too long.
        """
        ids: list[int] = prompt.token_ids
        if self.most is not None and len(ids) > self.most:
            raise InvalidRequest(
                "prompt",
                f"has {len(ids)} tokens, and max_embed_len of --pooler-config allows {self.most}; "
                "shorten it.",
            )
        cuts = [ids[start : start + self.size] for start in range(0, len(ids), self.size)] or [ids]
        found = [replace(prompt, token_ids=piece) for piece in cuts]
        return [(found[0], params), *((piece, params.clone(unpooled=0)) for piece in found[1:])]


def joined(outputs: Outputs) -> PoolingRequestOutput[PoolingOutput]:
    """Return the mean of the embeddings of a text's pieces, each counted as often as it has tokens."""
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
