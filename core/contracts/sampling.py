"""Logits processors and the rows they see."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import torch

    from core.types import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplerContext:
    """What a logits processor is constructed with."""

    vocab_size: int
    max_num_seqs: int
    max_model_len: int
    device: str


class SampleRows:
    """Where the tokens of one call are sampled, in the order of the logits.

    A row stands here once or, where some of its tokens are guesses, once for each of them and once
    more: behind its known tokens (point 0), behind the first guess (point 1), and so on. What lies
    below the length of a point is its history, guesses included; a token counts if all guesses
    before it were right. The tensors are good for this call only.

    Guesses may be a tree in rows that ask for no processor, no structured output, no feature and
    have no `extra_args`: their points are behind a part of the guesses before them.
    """

    __slots__ = (
        "_lengths",
        "errors",
        "length_index",
        "points",
        "processed",
        "prompt_index",
        "prompt_lens",
        "row_index",
        "rows",
        "token_ids",
    )

    def __init__(
        self,
        rows: list[int],
        prompt_lens: list[int],
        lengths: list[int] | None,
        row_index: torch.Tensor,
        length_index: torch.Tensor,
        prompt_index: torch.Tensor,
        token_ids: torch.Tensor,
        points: list[int] | None = None,
        processed: Set[int] = frozenset(),
    ) -> None:
        """Without `points`, all are 0; without `lengths`, only the device knows them yet."""
        self.rows: Final = rows
        """Place in the batch of each of the n entries: what `added` and `removed` call `row`."""
        self.prompt_lens: Final = prompt_lens
        """Tokens of each row's prompt."""
        self._lengths = lengths
        self.row_index: Final = row_index
        """[n] int64, `rows` on the device."""
        self.length_index: Final = length_index
        """[n] int64, `lengths` on the device."""
        self.prompt_index: Final = prompt_index
        """[n] int64, `prompt_lens` on the device."""
        self.token_ids: Final = token_ids
        """[rows of the batch, max_model_len] int64 token history by row and position; valid below
        `lengths`.
        """
        self.points: Final = [0] * len(rows) if points is None else points
        """Guesses before each token."""
        self.processed: Final = processed
        """Rows that logits processors are called for, and more perhaps."""
        self.errors: Final[dict[int, str]] = {}
        """By row: why an extension cannot serve it, written in `before_sample`.

        Its request fails with that, no other.
        """

    @property
    def lengths(self) -> list[int]:
        """Known tokens and guesses before each token (so also its position).

        Waits for the device where the step before is not read yet and had guesses; `length_index`
        never does.
        """
        if self._lengths is None:
            self._lengths = self.length_index.tolist()
        return self._lengths

    def select(self, indices: Sequence[int]) -> SampleRows:
        """Return the entries at `indices`."""
        index = self.row_index.new_tensor(indices)
        return SampleRows(
            [self.rows[i] for i in indices],
            [self.prompt_lens[i] for i in indices],
            None if self._lengths is None else [self._lengths[i] for i in indices],
            self.row_index[index],
            self.length_index[index],
            self.prompt_index[index],
            self.token_ids,
            [self.points[i] for i in indices],
            self.processed,
        )


class LogitsProcessor(Protocol):
    """Changes logits before a token is chosen; batch-level.

    Constructed with a `SamplerContext` and, if it takes two arguments, with the engine's config.

    The kernel calls `apply` with exactly the rows that `wants` said yes to, so a processor never
    sees, and can never harm, a request that did not ask for it. Per-row state must follow from
    sampling parameters and tokens alone: after preemption or a restart `added` is called again with
    the tokens so far. Must not read device values back to the host.

    A processor that keeps nothing which grows with the tokens says `follows_tokens = False`, and is
    called with all points of a row at once (`SampleRows.points`). Without it, or with True, it sees
    the first point of a row only, and such a row gets one token in each step.

    Optional: a static method `validate(sampling, vocab_size)` that raises `InvalidRequest` for what
    it cannot serve; called at admission, so that a bad request is refused at the edge. And
    `prepare(sampling, tokenizer)`, which returns the parameters that requests get instead, such as
    texts turned into tokens; the tokenizer may be None. `extra_args`, a mapping of names to types,
    declares the arguments it takes from `SamplingParams.extra_args` (over HTTP: `vllm_xargs`):
    values of other types are refused. `excludes` names fields of `SamplingParams` it cannot serve
    at once.
    """

    params: tuple[str, ...]
    """Fields of `SamplingParams` it serves; without it, requests that set them are refused."""
    argmax_invariant: bool
    """True: never changes which token is best, so it is skipped for greedy rows and runs after
    temperature.
    """

    def wants(self, sampling: SamplingParams) -> bool:
        """Say whether this request needs the processor."""

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """A request that `wants` it took `row`; `token_ids` are its prompt and tokens so far."""

    def removed(self, row: int) -> None:
        """The request in `row` has left."""

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Return the changed logits [n, vocab] float32; changing them in place is allowed."""
