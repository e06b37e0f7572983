"""Parameters of pooling requests, field-compatible with vLLM's, and what of pooling crosses
processes.
"""

from __future__ import annotations

from array import array
from typing import Annotated, Any, Final

import msgspec

from core.errors import InvalidRequest, did_you_mean
from core.types.bounds import MAX_INT, MAX_LISTED_TOKENS, Bound, make_checks
from core.types.sampling import RequestOutputKind

TASKS: Final = ("embed", "classify", "score", "token_embed", "token_classify")
"""What can be asked of a pooling model: one vector, scores of labels or one score for a prompt, or
for each token.
"""
PER_TOKEN: Final = ("token_embed", "token_classify")


class PoolingParams(msgspec.Struct, kw_only=True, omit_defaults=True, dict=False):
    """What to make of one prompt; names, defaults and meanings as in vLLM.

    Raises `InvalidRequest` (a ValueError) naming the field when a value is outside its limits.
    Limits that depend on the model are checked at admission.
    """

    task: str | None = None
    """One of `TASKS`; None: what the model was made for."""
    truncate_prompt_tokens: Annotated[
        int | None,
        Bound(
            "Keep so many prompt tokens, special ones at its end included; -1: as many as fit.",
            -1,
            MAX_INT,
        ),
    ] = None
    dimensions: Annotated[
        int | None, Bound("Leading numbers of an embedding to keep.", 1, MAX_INT)
    ] = None
    use_activation: Annotated[
        bool | None, Bound("Normalise embeddings, turn scores into probabilities.")
    ] = None
    normalize: Annotated[bool | None, Bound("Older name of use_activation, for embeddings.")] = None
    softmax: Annotated[
        bool | None, Bound("Older name of use_activation, for scores of tokens.")
    ] = None
    activation: Annotated[bool | None, Bound("Older name of use_activation, for scores.")] = None
    step_tag_id: Annotated[
        int | None, Bound("Only scores at this token are returned.", 0, MAX_INT)
    ] = None
    returned_token_ids: Annotated[
        list[int] | None, Bound("Only these columns of the scores.", 0, max_items=MAX_LISTED_TOKENS)
    ] = None
    skip_reading_prefix_cache: Annotated[bool | None, Bound("Compute the whole prompt again.")] = (
        None
    )
    requires_token_ids: bool = False
    """Poolers have the token ids in any case; known because requests elsewhere say it."""
    extra_kwargs: dict[str, Any] | None = None
    """Arguments of plugins' poolers."""
    pair_start: int = -1
    """Where the second text of a pair begins; filled by the engine, not a request field."""
    unpooled: int = 0
    """Tokens at the beginning that poolers of several tokens leave out; filled by the engine, not a
    request field.
    """
    output_kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY

    def __post_init__(self) -> None:
        for name, check in _CHECKS:
            check(name, getattr(self, name))
        if self.task is not None and self.task not in TASKS:
            hint = did_you_mean(str(self.task), TASKS)
            raise InvalidRequest("task", f"{self.task!r} is none of {', '.join(TASKS)}{hint}.")
        if self.extra_kwargs is not None and not isinstance(self.extra_kwargs, dict):
            raise InvalidRequest(
                "extra_kwargs", f"must map names to values, not {self.extra_kwargs!r}."
            )
        if self.use_activation is None:
            given = (self.normalize, self.softmax, self.activation)
            self.use_activation = next((value for value in given if value is not None), None)

    def clone(self, **changes: Any) -> PoolingParams:
        """Return a copy with some fields changed, validated again."""
        return msgspec.structs.replace(self, **changes)


_CHECKS = make_checks(PoolingParams)


class Pooled(msgspec.Struct, array_like=True, frozen=True):
    """Numbers a pooling model made of one prompt, as they cross processes."""

    data: bytes
    """float32, in the byte order of the machine."""
    shape: tuple[int, ...]

    def numbers(self) -> list[float]:
        """Return them flat."""
        found = array("f")
        found.frombytes(self.data)
        return found.tolist()


class PoolingInfo(msgspec.Struct, frozen=True):
    """What a worker's pooling model can do, as requests are checked by it."""

    tasks: tuple[str, ...]
    """The first is what it was made for."""
    size: int
    """Numbers of an embedding, or labels."""
    matryoshka: bool = False
    """Embeddings may be cut ..."""
    dimensions: tuple[int, ...] = ()
    """... to these sizes; empty: to any."""
    whole: tuple[str, ...] = ()
    """Tasks that need the hidden states of every token, so that none may come from the prefix
    cache.
    """
    step_tag_id: int | None = None
    """What ends a step, where requests do not say."""
    pairs: bool = False
    """Scores of pairs come from reading both texts together."""
