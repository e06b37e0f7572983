"""What every hook that a plugin adds for others must keep."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from core.plugin.entry import PROJECT

if TYPE_CHECKING:
    from core.testing.conformance import Subject


def check_adds_a_hook(subject: Subject) -> None:
    """Whatever is returned has functions marked with `@hookspec`."""
    assert list(_hooks(subject)), (
        f"{subject.entry.name}: engine_add_hooks returned nothing marked with @hookspec."
    )


def check_hooks_document_their_purpose(subject: Subject) -> None:
    """Authors of other plugins read the docstring, and nothing else."""
    for name, hook in _hooks(subject):
        assert inspect.getdoc(hook), (
            f"{subject.entry.name}: hook {name} has no docstring; state what it returns and when "
            "type."
        )


def check_hooks_can_be_called(subject: Subject) -> None:
    """`registry.call_hook` finds each, with and without an implementation."""
    for name, hook in _hooks(subject):
        made_up = {
            "str": "absent/model",
            "EngineConfig": subject.target.config,
            "Registry": subject.target.registry,
        }
        parameters = inspect.signature(hook, eval_str=False).parameters.values()
        arguments = {
            each.name: made_up.get(getattr(each.annotation, "__name__", each.annotation))
            for each in parameters
        }
        try:
            subject.target.registry.call_hook(name, **arguments)
        except AttributeError as error:
            raise AssertionError(
                f"{subject.entry.name}: hook {name} cannot be called: {error}"
            ) from error


def _hooks(subject: Subject) -> Iterator[tuple[str, Any]]:
    for specifications in subject.target.given():
        for name, value in vars(specifications).items():
            if hasattr(value, f"{PROJECT}_spec"):
                yield name, value
