"""What every speculator that finds draft tokens in text must pass; those with models are tested
with theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from builtin_plugins.speculators.contract import DraftRow, SpeculativeConfig, Speculator
from core.api import SamplingParams
from core.api.execution import NewRow
from core.testing.conformance.examples import examples

if TYPE_CHECKING:
    from core.testing.conformance import Subject

CONTRACT = Speculator
TEXTS = ([1], [1, 2, 3], [4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6], [9] * 20, list(range(40)) * 2)


def check_says_whether_it_finds(subject: Subject) -> None:
    """`is_lookup` is set on the class."""
    found = getattr(subject.target, "is_lookup", None)
    assert isinstance(found, bool), (
        f"{subject.entry.name}: finds is {found!r}; set it to True or False."
    )


def check_proposes_no_more_than_requested(subject: Subject) -> None:
    """For every row, in their order, come none to `max_draft_tokens` tokens, those that it gets
    alone.
    """
    if not subject.target.is_lookup:
        return
    for limit in (1, 4):
        drafts = _make(subject).propose(_rows(limit))
        assert len(drafts) == len(TEXTS), (
            f"{subject.entry.name}: {len(drafts)} drafts for {len(TEXTS)} rows."
        )
        alone = [_make(subject).propose([row])[0] for row in _rows(limit)]
        same = [list(draft) for draft in drafts] == [list(draft) for draft in alone]
        assert same, f"{subject.entry.name}: rows together are given {drafts}, each alone {alone}."
        longest = max(map(len, drafts))
        assert longest <= limit, (
            f"{subject.entry.name}: {longest} draft tokens where {limit} were requested."
        )


def check_examples_are_proposed(subject: Subject) -> None:
    """Tokens so far, the number of draft tokens requested, and those proposed."""
    if not subject.target.is_lookup:
        return
    for tokens, limit, expected in examples(subject, "EXAMPLES = [([1, 2, 1, 2], 2, [1, 2])]"):
        found = list(_make(subject).propose([DraftRow(0, _owner(), np.array(tokens), limit)])[0])
        assert found == list(expected), (
            f"{subject.entry.name}: after {tokens} comes {found}, its example says {expected}."
        )


def check_proposals_are_deterministic(subject: Subject) -> None:
    """All ranks must propose the same draft tokens for the same tokens."""
    if subject.target.is_lookup:
        first, other = (
            [list(draft) for draft in _make(subject).propose(_rows(4))] for _ in range(2)
        )
        assert first == other, f"{subject.entry.name}: a second instance proposed other tokens."


def check_a_row_given_to_another_is_new(subject: Subject) -> None:
    """What was known of a row's last owner is not mixed with what the next one says."""
    if subject.target.is_lookup:
        speculator = _make(subject)
        speculator.propose([DraftRow(0, _owner(), np.array([4, 5, 6, 7, 4, 5, 6]), 4)])
        late = speculator.propose([DraftRow(0, _owner(), np.array([7, 8, 9, 7, 8]), 4)])
        early = _make(subject).propose([DraftRow(0, _owner(), np.array([7, 8, 9, 7, 8]), 4)])
        assert list(late[0]) == list(early[0]) or not early[0], (
            f"{subject.entry.name}: proposed from another request's tokens."
        )


def _make(subject: Subject) -> Any:
    return subject.target(subject.config, SpeculativeConfig(method=subject.entry.name), None)


def _owner() -> NewRow:
    return NewRow(0, "request", [], 1, SamplingParams(), 0, (), [])


def _rows(limit: int) -> list[DraftRow]:
    return [DraftRow(row, _owner(), np.array(text), limit) for row, text in enumerate(TEXTS)]
