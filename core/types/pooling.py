"""Parameters and outputs of pooling requests; fields as in vLLM. Tensors are made on access."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar

import msgspec

from core.errors import InvalidRequest, RequestFailed, did_you_mean
from core.types.bounds import MAX_INT, MAX_LISTED_TOKENS, Bound, make_checks
from core.types.sampling import RequestOutputKind

if TYPE_CHECKING:
    import torch

    from core.types.outputs import RequestOutput

# --- parameters -------------------------------------------------------------

TASKS: Final = ("embed", "classify", "score", "token_embed", "token_classify")
"""Pooling tasks: a vector, label scores or one score per prompt; vectors or scores per token."""
PER_TOKEN: Final = ("token_embed", "token_classify")


class PoolingParams(msgspec.Struct, kw_only=True, omit_defaults=True, dict=False):
    """Parameters of a pooling request; names, defaults and meanings as in vLLM.

    Raises `InvalidRequest` (a ValueError) naming a field outside its limits. Limits that depend on
    the model are checked at admission.
    """

    task: str | None = None
    """One of `TASKS`; None: the model's default task."""
    truncate_prompt_tokens: Annotated[
        int | None,
        Bound(
            "Maximum prompt tokens to keep, with special tokens; -1: as many as fit.", -1, MAX_INT
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
        list[int] | None,
        Bound("Only these columns of the scores.", 0, max_items=MAX_LISTED_TOKENS),
    ] = None
    skip_reading_prefix_cache: Annotated[bool | None, Bound("Compute the whole prompt again.")] = (
        None
    )
    requires_token_ids: bool = False
    """No effect: poolers always get the token ids. Accepted for compatibility."""
    extra_kwargs: dict[str, Any] | None = None
    """Arguments of plugins' poolers."""
    pair_start: int = -1
    """Index of the first token of a pair's second text; set by the engine."""
    unpooled: int = 0
    """Number of leading tokens that multi-token poolers skip; set by the engine."""
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


# --- between processes ------------------------------------------------------


class Pooled(msgspec.Struct, array_like=True, frozen=True):
    """The pooled output of one prompt, as sent between processes."""

    data: bytes
    """float32 in native byte order."""
    shape: tuple[int, ...]

    def numbers(self) -> list[float]:
        """Return the values as a flat list."""
        found = array("f")
        found.frombytes(self.data)
        return found.tolist()


class PoolingInfo(msgspec.Struct, frozen=True):
    """The pooling tasks of a worker's model, for request validation."""

    tasks: tuple[str, ...]
    """Supported tasks, the default one first."""
    size: int
    """Size of an embedding, or number of labels."""
    matryoshka: bool = False
    """True: embeddings may be truncated to `dimensions`."""
    dimensions: tuple[int, ...] = ()
    """Allowed sizes of truncated embeddings; empty: any."""
    needs_whole_prompt: tuple[str, ...] = ()
    """Tasks that need every token's hidden state, and thus no prefix cache."""
    step_tag_id: int | None = None
    """Default of `PoolingParams.step_tag_id`."""
    pair_end_ids: tuple[int, ...] = ()
    """Tokens after a rendered pair."""
    is_cross_encoder: bool = False
    """True: a cross-encoder, which scores pairs by reading both texts together."""


# --- outputs ----------------------------------------------------------------


@dataclass(slots=True)
class PoolingOutput:
    """The pooled output of one prompt."""

    pooled: Pooled

    @property
    def data(self) -> torch.Tensor:
        """The values as a tensor: [size], or [tokens, size]."""
        import torch  # lazy: slow to import, and a server needs none

        if not self.pooled.data:
            return torch.empty(self.pooled.shape)
        values = torch.frombuffer(bytearray(self.pooled.data), dtype=torch.float32)
        return values.view(self.pooled.shape)


@dataclass(slots=True)
class EmbeddingOutput:
    """One embedding."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Size of the embedding."""
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
    """The similarity of two texts."""

    score: float


Out = TypeVar("Out", PoolingOutput, EmbeddingOutput, ClassificationOutput, ScoringOutput)


@dataclass
class PoolingRequestOutput(Generic[Out]):
    """The final output of one pooling request."""

    request_id: str
    outputs: Out
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True

    @classmethod
    def of(cls, output: RequestOutput) -> PoolingRequestOutput[PoolingOutput]:
        """Return the pooling output of an engine output. Raises `RequestFailed` with its error."""
        if output.pooled is None:
            reason = output.error or "it was ended before it was computed"
            raise RequestFailed(f"request {output.request_id}: {reason}.")
        return PoolingRequestOutput(
            output.request_id,
            PoolingOutput(output.pooled),
            output.prompt_token_ids or [],
            output.num_cached_tokens or 0,
        )


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """The final output of an embedding request."""


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """The final output of a classification request."""


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """The final output of a scoring request."""
