"""What every entry must keep, whatever its kind: it describes itself and has the methods of its
contract.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING

from core.errors import did_you_mean
from core.testing.conformance import contract_of
from core.testing.conformance.signatures import assert_takes
from core.testing.facts import FACTS

if TYPE_CHECKING:
    from core.testing.conformance import Subject


def check_summary_is_one_line(subject: Subject) -> None:
    """`engine plugins explain` and the docs show it."""
    summary = subject.entry.summary
    assert summary.strip(), (
        f"{subject.entry.name}: the summary is empty; say in one line what the entry does."
    )
    assert "\n" not in summary, (
        f"{subject.entry.name}: the summary has several lines; keep the first."
    )
    assert len(summary) <= 120, (
        f"{subject.entry.name}: the summary has {len(summary)} characters; use up to 120."
    )


def check_facts_in_when_are_known(subject: Subject) -> None:
    """An entry never fits if its `when` names an unknown fact."""
    known = FACTS.get(subject.kind, {})
    if subject.entry.requires:
        return  # what it requires may be another's platform, which states more
    for name in subject.entry.when:
        assert name in known, (
            f"{subject.entry.name}: when has {name!r}; expected a fact of {subject.kind}"
            f"{did_you_mean(name, known) or '.'} Known: "
            f"{', '.join(known) or 'none, they are chosen without facts'}."
        )


def check_target_is_what_the_contract_says(subject: Subject) -> None:
    """The engine constructs classes and calls functions; where the contract is plain data, it takes
    the data.
    """
    contract = contract_of(subject.kind)
    if isinstance(contract, type) and dataclasses.is_dataclass(contract):
        found = (
            f"{subject.entry.name}: the target is {subject.target!r}; make it a "
            f"{contract.__name__}."
        )
        assert isinstance(subject.target, contract), found
    else:
        assert callable(subject.target), (
            f"{subject.entry.name}: {subject.target!r} is neither a class nor a function."
        )


def check_has_the_methods_of_its_contract(subject: Subject) -> None:
    """Every method the kernel calls is there and takes what it is called with."""
    contract = contract_of(subject.kind)
    if not (isinstance(contract, type) and isinstance(subject.target, type)):
        return
    for name, method in vars(contract).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        given = getattr(subject.target, name, None)
        assert callable(given), (
            f"{subject.target.__name__} has no method {name}; {contract.__name__} requires it."
        )
        assert_takes(subject.target, name, method)
