"""`thinking_token_budget`: ends reasoning that has used up its token budget.

The arguments are `extra_args`: the budget, and the start and end texts of reasoning. Over HTTP the
field of the same name sets all three, using the server's reasoning parser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from core.api import Entry, InvalidRequest, SamplingParams, hookimpl
from core.api.sampling import SamplerContext, SampleRows
from core.api.serving import Tokenizer

if TYPE_CHECKING:
    import torch

BUDGET: Final = "thinking_token_budget"
STARTS: Final = "thinking_starts"
END: Final = "thinking_end"
_IDS: Final = "thinking_token_ids"
_PROMPT_END_TOKENS: Final = 8
"""Number of last prompt tokens searched for the start of reasoning."""


@hookimpl
def engine_logits_processors() -> list[Entry]:
    """Return the processor."""
    summary = f"{BUDGET}: maximum of reasoning tokens"
    return [Entry("thinking_budget", f"{__name__}:ThinkingBudget", summary)]


@dataclass(frozen=True, slots=True)
class _Row:
    """The reasoning of one output: its latest start, budget and end."""

    first: int
    """Position of the first token that counts."""
    budget: int
    starts: Sequence[Sequence[int]]
    """Token sequences that start reasoning in the output; empty if the prompt has started it."""
    end: Sequence[int]


class ThinkingBudget:
    """Forces the end tokens of reasoning when the budget is used up."""

    params: tuple[str, ...] = ()
    extra_args: Mapping[str, Any] = {BUDGET: int, STARTS: list[str], END: str}
    argmax_invariant = False
    follows_tokens = False

    def __init__(self, context: SamplerContext) -> None:
        self._rows: dict[int, _Row] = {}

    @staticmethod
    def prepare(sampling: SamplingParams, tokenizer: Tokenizer | None) -> SamplingParams:
        """Add the tokens of the texts; by default `<think>` and `</think>`."""
        given = sampling.extra_args or {}
        if BUDGET not in given:
            return sampling
        if tokenizer is None:
            raise InvalidRequest(
                f"extra_args.{BUDGET}", "there is no tokenizer to find reasoning with."
            )
        if not isinstance(given[BUDGET], int) or given[BUDGET] < 0:
            raise InvalidRequest(
                f"extra_args.{BUDGET}",
                f"must be an integer of at least 0, not {given[BUDGET]!r:.80}.",
            )
        starts = given.get(STARTS, ["<think>"])
        end = given.get(END, "</think>")
        is_list = isinstance(starts, list)
        if not (is_list and all(isinstance(text, str) for text in (*starts, end)) and end):
            raise InvalidRequest(
                f"extra_args.{END}", "must be a text, and the starts a list of texts."
            )
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in (end, *starts)]
        return sampling.clone(extra_args={**given, _IDS: ids})

    def wants(self, sampling: SamplingParams) -> bool:
        """Return whether the request has a budget."""
        return BUDGET in (sampling.extra_args or {})

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Store the row's reasoning, unless the prompt has ended it."""
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
        """Remove the row's reasoning."""
        self._rows.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Force the end tokens in the steps in which they are due."""
        entries = zip(rows.rows, rows.prompt_lens, rows.lengths, strict=True)
        for i, (row, prompt_len, length) in enumerate(entries):
            reasoning = self._rows.get(row)
            if reasoning is None:
                continue
            over_budget = length - reasoning.first - reasoning.budget
            if not 0 <= over_budget < len(reasoning.end):
                continue
            output = rows.token_ids[row, prompt_len:length]
            forced = logits.new_full(logits[i].shape, float("-inf"))
            forced[reasoning.end[over_budget]] = 0.0
            logits[i] = forced.where(_is_reasoning(output, reasoning), logits[i])
        return logits


def _is_reasoning(output: torch.Tensor, reasoning: _Row) -> torch.Tensor:
    """Return, on the device, whether the output started reasoning and has not ended it."""
    end = output.new_tensor(reasoning.end)
    begun = output.new_tensor(not reasoning.starts).bool()
    for start in reasoning.starts:
        if len(start) <= len(output):
            begun = begun | (output[: len(start)] == output.new_tensor(start)).all()
    if len(output) < len(end):
        return begun
    return begun & ~(output.unfold(0, len(end), 1) == end).all(1).any()


def _last(tokens: Sequence[int], part: Sequence[int]) -> int:
    """Return the start of the last occurrence of `part` in `tokens`; -1 if there is none."""
    for start in range(len(tokens) - len(part), -1, -1):
        if list(tokens[start : start + len(part)]) == list(part):
            return start
    return -1
