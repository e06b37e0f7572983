"""What every entry must keep, whatever its kind: it describes itself and has the methods of its contract."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from core import contracts
from core.plugin import KINDS

if TYPE_CHECKING:
    from core.testing.conformance import Subject


def check_summary_is_one_line(subject: Subject) -> None:
    """`engine plugins explain` and the docs show it."""
    summary = subject.entry.summary
    assert summary.strip(), f"{subject.entry.name}: the summary is empty; say in one line what the entry does."
    assert "\n" not in summary, f"{subject.entry.name}: the summary has several lines; keep the first."
    assert len(summary) <= 120, f"{subject.entry.name}: the summary has {len(summary)} characters; use at most 120."


def check_target_is_what_the_contract_says(subject: Subject) -> None:
    """The engine constructs classes and calls functions; where the contract is plain data, it takes the data."""
    contract = getattr(contracts, KINDS[subject.kind].contract)
    if isinstance(contract, type) and dataclasses.is_dataclass(contract):
        found = f"{subject.entry.name}: the target is {subject.target!r}; make it a {contract.__name__}."
        assert isinstance(subject.target, contract), found
    else:
        assert callable(subject.target), f"{subject.entry.name}: {subject.target!r} is neither a class nor a function."


def check_has_the_methods_of_its_contract(subject: Subject) -> None:
    """Every method the kernel calls is there and takes what it is called with."""
    contract = getattr(contracts, KINDS[subject.kind].contract)
    if not (isinstance(contract, type) and isinstance(subject.target, type)):
        return
    for name, asked in vars(contract).items():
        if name.startswith("_") or not inspect.isfunction(asked):
            continue
        given = getattr(subject.target, name, None)
        assert callable(given), f"{subject.target.__name__} has no method {name}; {contract.__name__} asks for it."
        _assert_takes(subject.target, name, asked)


def _assert_takes(target: type, name: str, asked: Any) -> None:
    """Bind the contract's own arguments to the given method."""
    own = list(inspect.signature(asked).parameters.values())[1:]
    keywords = {p.name: None for p in own if p.kind is p.KEYWORD_ONLY}
    static = isinstance(inspect.getattr_static(target, name), (staticmethod, classmethod))
    positional = [None] * (len(own) - len(keywords) + (0 if static else 1))
    given = inspect.signature(getattr(target, name))
    try:
        given.bind(*positional, **keywords)
    except TypeError as error:
        raise AssertionError(
            f"{target.__name__}.{name}({', '.join(given.parameters)}) cannot be called as the contract's "
            f"{name}({', '.join(p.name for p in own)}): {error}."
        ) from error
