"""What every finder of models must keep. `EXAMPLE_MODELS = ("acme:small",)` next to the hook names
models that it
knows without any files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from core.contracts.models import ModelSource
from core.errors import EngineError, PluginError

if TYPE_CHECKING:
    from core.testing.conformance import Subject

_FOREIGN: Final = (
    "",
    "absent/model",
    "/no/such/folder",
    "no-such-scheme:x",
    "x" * 3_000,
    "\u00e9\x00 \n",
)


def check_leaves_other_names_to_others(subject: Subject) -> None:
    """The first answer counts, so None is the only one for what is not its own; nothing is raised
    for it.
    """
    for name in _FOREIGN:
        try:
            found = _find(subject, name)
        except PluginError as error:
            raise AssertionError(f"engine_find_model({name!r:.40}) raises: {error}") from error
        except EngineError:
            continue  # of a name that is its own, and wrong
        assert found is None, (
            f"{subject.entry.name}: engine_find_model({name!r:.40}) returned {found!r:.80}; return "
            "None."
        )


def check_knows_its_examples(subject: Subject) -> None:
    """A name of its own gives a `ModelSource`, or another name; the same each time."""
    for name in subject.target.examples.get("EXAMPLE_MODELS", ()):
        found = _find(subject, name)
        again = _find(subject, name)
        good = isinstance(found, (str, ModelSource)) and found != name
        assert good, (
            f"{subject.entry.name}: {name!r} gives {found!r:.80}; return a ModelSource or another "
            "name."
        )
        assert found == again, (
            f"{subject.entry.name}: {name!r} gives {found!r:.80}, then {again!r:.80}."
        )


def _find(subject: Subject, name: str) -> Any:
    point = subject.target
    answers = point.registry.hooks.call("engine_find_model", model=name, config=point.config)
    return next((answer for owner, answer in answers if owner == point.plugin), None)
