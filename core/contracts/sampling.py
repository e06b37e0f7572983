"""Logits processors and the rows they see, and what features do with sampling parameters at the edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

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


@dataclass(slots=True)
class SampleRows:
    """The rows of one `apply` call, in the order of the logits."""

    rows: list[int]
    prompt_lens: list[int]
    lengths: list[int]
    """Known tokens per row, the one being sampled not included (so also its position)."""
    row_index: torch.Tensor
    """[n] int64, `rows` on the device."""
    length_index: torch.Tensor
    """[n] int64, `lengths` on the device."""
    prompt_index: torch.Tensor
    """[n] int64, `prompt_lens` on the device."""
    token_ids: torch.Tensor
    """[max_num_seqs, max_model_len] int64 token history by row and position; valid below `lengths`."""


class LogitsProcessor(Protocol):
    """Changes logits before a token is chosen; batch-level. Constructed with a `SamplerContext`.

    The kernel calls `apply` with exactly the rows that `wants` said yes to, so a processor never sees, and
    can never harm, a request that did not ask for it. Per-row state must follow from sampling parameters
    and tokens alone: after preemption or a restart `added` is called again with the tokens so far.
    Must not read device values back to the host.

    Optional: a static method `validate(sampling, vocab_size)` that raises `InvalidRequest` for what it cannot
    serve; called at admission, so that a bad request is refused at the edge. And `prepare(sampling, tokenizer)`, which
    returns the parameters that requests get instead, such as texts turned into tokens; the tokenizer may be None.
    `extra_args`, a mapping of names to types, declares the arguments it takes from `SamplingParams.extra_args` (over HTTP:
    `vllm_xargs`): values of other types are refused. `excludes` names fields of `SamplingParams` it cannot serve at once.
    """

    params: tuple[str, ...]
    """Fields of `SamplingParams` it serves; without it, requests that set them are refused."""
    argmax_invariant: bool
    """True: never changes which token is best, so it is skipped for greedy rows and runs after temperature."""

    def wants(self, sampling: SamplingParams) -> bool:
        """Say whether this request needs the processor."""

    def added(self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int) -> None:
        """A request that `wants` it took `row`; `token_ids` are its prompt and tokens so far."""

    def removed(self, row: int) -> None:
        """The request in `row` has left."""

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Return the changed logits [n, vocab] float32; changing them in place is allowed."""


class AdmissionExtension(Protocol):
    """What a feature does with requests before the engine sees them. Called from any thread."""

    params: tuple[str, ...]
    """Fields of `SamplingParams` it serves."""

    def wants(self, sampling: SamplingParams) -> bool:
        """Say whether such a request concerns it: a moment's look."""

    def admit(self, sampling: SamplingParams, end_ids: Sequence[int]) -> SamplingParams:
        """Return the parameters requests get instead. Raises `InvalidRequest`; may take a while.

        `end_ids` are the tokens that end outputs of the model.
        """
