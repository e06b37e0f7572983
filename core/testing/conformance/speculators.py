"""What every speculator that finds its guesses in text must hold to; those with models are tested
with theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from core.contracts import DraftRow, SpeculativeConfig
from core.step import NewRow
from core.testing.conformance.examples import examples
from core.types import SamplingParams

if TYPE_CHECKING:
    from core.testing.conformance import Subject

TEXTS = ([1], [1, 2, 3], [4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6], [9] * 20, list(range(40)) * 2)


def check_says_whether_it_finds(subject: Subject) -> None:
    """`finds` is set on the class."""
    found = getattr(subject.target, "finds", None)
    assert isinstance(found, bool), (
        f"{subject.entry.name}: finds is {found!r}; set it to True or False."
    )


def check_guesses_no_more_than_asked(subject: Subject) -> None:
    """For every row, in their order, come none to `most` tokens, those that it gets alone."""
    if not subject.target.finds:
        return
    for most in (1, 4):
        drafts = _make(subject).drafts(_rows(most))
        assert len(drafts) == len(TEXTS), (
            f"{subject.entry.name}: {len(drafts)} drafts for {len(TEXTS)} rows."
        )
        alone = [_make(subject).drafts([row])[0] for row in _rows(most)]
        same = [list(draft) for draft in drafts] == [list(draft) for draft in alone]
        assert same, f"{subject.entry.name}: rows together are given {drafts}, each alone {alone}."
        longest = max(map(len, drafts))
        assert longest <= most, (
            f"{subject.entry.name}: {longest} guesses where {most} were asked for."
        )


def check_examples_are_guessed_as_they_say(subject: Subject) -> None:
    """Tokens so far, how many guesses are asked for, and those that come."""
    if not subject.target.finds:
        return
    for tokens, most, guesses in examples(subject, "EXAMPLES = [([1, 2, 1, 2], 2, [1, 2])]"):
        found = list(_make(subject).drafts([DraftRow(0, _owner(), np.array(tokens), most)])[0])
        assert found == list(guesses), (
            f"{subject.entry.name}: behind {tokens} comes {found}, its example says {guesses}."
        )


def check_guesses_the_same_again(subject: Subject) -> None:
    """All ranks must guess alike, so that the same tokens give the same guesses."""
    if subject.target.finds:
        first, other = (
            [list(draft) for draft in _make(subject).drafts(_rows(4))] for _ in range(2)
        )
        assert first == other, f"{subject.entry.name}: a second instance guessed otherwise."


def check_a_row_given_to_another_is_new(subject: Subject) -> None:
    """What was known of a row's last owner is not mixed with what the next one says."""
    if subject.target.finds:
        speculator = _make(subject)
        speculator.drafts([DraftRow(0, _owner(), np.array([4, 5, 6, 7, 4, 5, 6]), 4)])
        late = speculator.drafts([DraftRow(0, _owner(), np.array([7, 8, 9, 7, 8]), 4)])
        early = _make(subject).drafts([DraftRow(0, _owner(), np.array([7, 8, 9, 7, 8]), 4)])
        assert list(late[0]) == list(early[0]) or not early[0], (
            f"{subject.entry.name}: guessed from another's tokens."
        )


def _make(subject: Subject) -> Any:
    return subject.target(subject.config, SpeculativeConfig(method=subject.entry.name), None)


def _owner() -> NewRow:
    return NewRow(0, "request", [], 1, SamplingParams(), 0, (), [])


def _rows(most: int) -> list[DraftRow]:
    return [DraftRow(row, _owner(), np.array(text), most) for row, text in enumerate(TEXTS)]
