"""`thinking_token_budget`: thoughts that have used up their tokens are ended, and the answer
begins.

The arguments are `extra_args`: the budget, and the texts between which the model thinks. Over HTTP
the field of the same name sets all three, as the server's reasoning parser says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from core.api import (
    Entry,
    InvalidRequest,
    SamplerContext,
    SampleRows,
    SamplingParams,
    Tokenizer,
    hookimpl,
)

if TYPE_CHECKING:
    import torch

BUDGET: Final = "thinking_token_budget"
STARTS: Final = "thinking_starts"
END: Final = "thinking_end"
_IDS: Final = "thinking_token_ids"
_PROMPT_END_TOKENS: Final = 8
"""A prompt has opened the thoughts if their start is among as many of its last tokens."""


@hookimpl
def engine_logits_processors() -> list[Entry]:
    """Give the processor."""
    return [
        Entry("thinking_budget", f"{__name__}:ThinkingBudget", f"{BUDGET}: most tokens of thoughts")
    ]


@dataclass(frozen=True, slots=True)
class _Row:
    """Where the thoughts of one output begin, at the latest, and what ends them."""

    first: int
    """Position of the first token that counts."""
    budget: int
    starts: Sequence[Sequence[int]]
    """One of these must stand at the beginning of the output; none: the prompt has begun the
    thoughts, or they are a
    habit."""
    end: Sequence[int]


class ThinkingBudget:
    """Writes the end of the thoughts where the budget is used up and they have not ended."""

    params: tuple[str, ...] = ()
    extra_args: Mapping[str, Any] = {BUDGET: int, STARTS: list[str], END: str}
    argmax_invariant = False
    follows_tokens = False

    def __init__(self, context: SamplerContext) -> None:
        self._rows: dict[int, _Row] = {}

    @staticmethod
    def prepare(sampling: SamplingParams, tokenizer: Tokenizer | None) -> SamplingParams:
        """Add the tokens of the texts.

        Without texts, thoughts are between `<think>` and `</think>`.
        """
        given = sampling.extra_args or {}
        if BUDGET not in given:
            return sampling
        if tokenizer is None:
            raise InvalidRequest(
                f"extra_args.{BUDGET}", "there is no tokenizer, so thoughts cannot be told."
            )
        if not isinstance(given[BUDGET], int) or given[BUDGET] < 0:
            raise InvalidRequest(
                f"extra_args.{BUDGET}",
                f"must be an integer of at least 0, not {given[BUDGET]!r:.80}.",
            )
        starts = given.get(STARTS, ["<think>"])
        end = given.get(END, "</think>")
        if not (
            isinstance(starts, list)
            and all(isinstance(text, str) for text in (*starts, end))
            and end
        ):
            raise InvalidRequest(
                f"extra_args.{END}", "must be a text, and the starts a list of texts."
            )
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in (end, *starts)]
        return sampling.clone(extra_args={**given, _IDS: ids})

    def wants(self, sampling: SamplingParams) -> bool:
        """Only requests with a budget."""
        return BUDGET in (sampling.extra_args or {})

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Look whether the prompt has begun the thoughts, or ended them, in which case there is
        nothing to do.
        """
        given = sampling.extra_args or {}
        end, *starts = given[_IDS]
        tail = list(token_ids[max(0, prompt_len - _PROMPT_END_TOKENS) : prompt_len])
        opened = max((_last(tail, start) for start in starts), default=-1)
        closed = _last(tail, end)
        if closed > opened:
            return
        if opened >= 0:
            starts = []
        first = prompt_len + max(map(len, starts), default=0)
        self._rows[row] = _Row(first, given[BUDGET], starts, end)

    def removed(self, row: int) -> None:
        """Forget it."""
        self._rows.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Force the tokens of the end, in the few steps in which they are due."""
        for i, (row, prompt_len, length) in enumerate(
            zip(rows.rows, rows.prompt_lens, rows.lengths, strict=True)
        ):
            thoughts = self._rows.get(row)
            if thoughts is None or not 0 <= length - thoughts.first - thoughts.budget < len(
                thoughts.end
            ):
                continue
            output = rows.token_ids[row, prompt_len:length]
            place = length - thoughts.first - thoughts.budget
            forced = logits.new_full(logits[i].shape, float("-inf"))
            forced[thoughts.end[place]] = 0.0
            logits[i] = forced.where(_thinks(output, thoughts), logits[i])
        return logits


def _thinks(output: torch.Tensor, thoughts: _Row) -> torch.Tensor:
    """Say, without a look from the host, whether the output began with thoughts and has not ended
    them.
    """
    end = output.new_tensor(thoughts.end)
    begun = output.new_tensor(not thoughts.starts).bool()
    for start in thoughts.starts:
        if len(start) <= len(output):
            begun = begun | (output[: len(start)] == output.new_tensor(start)).all()
    if len(output) < len(end):
        return begun
    return begun & ~(output.unfold(0, len(end), 1) == end).all(1).any()


def _last(tokens: Sequence[int], wanted: Sequence[int]) -> int:
    """Return where the last of some tokens in a row begin; -1: nowhere."""
    places = range(len(tokens) - len(wanted), -1, -1)
    return next((at for at in places if list(tokens[at : at + len(wanted)]) == list(wanted)), -1)
