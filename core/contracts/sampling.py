"""Logits processors, and the rows they see."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import torch

    from core.types import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplerContext:
    """The constructor argument of a logits processor."""

    vocab_size: int
    max_num_seqs: int
    max_model_len: int
    device: str
    hf_config: Any = None
    """`ModelSource.hf_config`."""


class SampleRows:
    """The entries of one sampling call, in the order of the logits.

    A row without draft tokens has one entry. A row with k draft tokens has k + 1: after
    its known tokens (point 0), after the first draft token (point 1), and so on. The
    history of an entry is everything below its length, draft tokens included; its token
    is valid if all draft tokens before it are accepted. The tensors are valid during
    this call only.

    Draft tokens form a tree only in rows without logits processors, structured outputs,
    features and `extra_args`. There an entry follows only the draft tokens of its own
    branch.
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
        """`points` default to 0; without `lengths` only the device knows them yet."""
        self.rows: Final = rows
        """Batch row of each of the n entries, as in `added` and `removed`."""
        self.prompt_lens: Final = prompt_lens
        """Prompt length of each entry's row, in tokens."""
        self._lengths = lengths
        self.row_index: Final = row_index
        """[n] int64, `rows` on the device."""
        self.length_index: Final = length_index
        """[n] int64, `lengths` on the device."""
        self.prompt_index: Final = prompt_index
        """[n] int64, `prompt_lens` on the device."""
        self.token_ids: Final = token_ids
        """[batch rows, max_model_len] int64: token history by row, valid below `lengths`."""
        self.points: Final = [0] * len(rows) if points is None else points
        """Number of draft tokens before each entry."""
        self.processed: Final = processed
        """Rows that logits processors apply to; may include others."""
        self.errors: Final[dict[int, str]] = {}
        """Errors by row, set by extensions in `before_sample`; they fail only that request."""

    @property
    def lengths(self) -> list[int]:
        """Number of known and draft tokens before each entry, which is also
        its position.

        Waits for the device if draft tokens of the step before are unverified;
        `length_index` never waits.
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
    """Changes the logits of a batch before sampling.

    Constructed with a `SamplerContext` and, if it takes two arguments, the engine's
    config.

    `apply` gets only rows for which `wants` returned True, so a processor never affects
    other requests. State per row must follow from sampling parameters and tokens alone:
    after a preemption or a restart `added` runs again with the tokens so far. Must not
    read device values back to the host.

    A processor without state that grows with the tokens declares `follows_tokens =
    False` and gets all entries of a row at once (`SampleRows.points`). Otherwise it
    sees only the first entry of a row, and that row gets one token per step.

    Optional members:
    - `validate(sampling, vocab_size)`, static: raises `InvalidRequest` at admission.
    - `prepare(sampling, tokenizer)`: returns the parameters to use instead, such as
      texts turned into tokens; the tokenizer may be None.
    - `extra_args`: names and types of its arguments in `SamplingParams.extra_args`
      (over HTTP: `vllm_xargs`); values of other types are refused.
    - `excludes`: fields of `SamplingParams` that it cannot be combined with.
    """

    params: tuple[str, ...]
    """Fields of `SamplingParams` that it implements; fields without a
    processor are refused.
    """
    argmax_invariant: bool
    """True: it never changes the argmax. It is skipped for greedy rows and
    runs after
    temperature."""

    def wants(self, sampling: SamplingParams) -> bool:
        """Return whether the processor applies to this request."""

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """A request that it applies to entered `row`; `token_ids` are prompt and output so far."""

    def removed(self, row: int) -> None:
        """The request in `row` has left."""

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Return the changed logits [n, vocab] float32; in-place changes are allowed."""
