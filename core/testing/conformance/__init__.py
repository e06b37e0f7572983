"""What every entry of a kind must keep, as checks that a plugin's author and our own tests run
alike.

Each kind, and each extension point that is no kind, has a module here with functions
`check_<statement>(subject)` that raise AssertionError with a text that says what to change; the
checks in `contract` hold for all kinds. Needs no pytest.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from core.config import EngineConfig
from core.config.build import config_from_kwargs
from core.errors import EngineError
from core.plugin import KINDS, load_plan, make_plan
from core.plugin.entry import Entry
from core.testing.conformance.extension_points import EXTENSION_POINTS, extension_points

SUITES: Final = "engine.conformance_suites"
"""Entry-point group of suites that other packages provide."""

if TYPE_CHECKING:
    from core.plugin import Registered, Registry

Check = Callable[["Subject"], None]


@dataclass(frozen=True, slots=True)
class Subject:
    """An entry under test."""

    kind: str
    entry: Entry
    target: Any
    """What the entry stands for, imported."""
    config: EngineConfig = field(default_factory=EngineConfig)
    """What it is made with: every value a default, those of its plugin's own options included."""
    registry: Registry | None = None
    """The plugins that were loaded with it."""
    builtin: bool = False
    """True: one of the engine's own; its examples may be in the tests instead of its module."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check."""

    subject: str
    """`kind:name`, or the plugin's name for checks of the plugin as a whole."""
    check: str
    """The statement, as words."""
    error: str | None = None
    """What is wrong; None when the check passed."""
    sentence: str = ""
    """The contract's, which the check holds the subject to."""

    @property
    def passed(self) -> bool:
        """Say whether nothing is wrong."""
        return self.error is None


@dataclass(frozen=True, slots=True)
class Case:
    """One check of one entry, ready to be called: a test parameter."""

    subject: Subject
    check: Check

    def __call__(self) -> None:
        self.check(self.subject)

    def __str__(self) -> str:
        return f"{self.subject.kind}:{self.subject.entry.name}-{statement(self.check)}"


def checks(kind: str) -> list[Check]:
    """Return the checks of a kind, those for all kinds first; or of an extension point."""
    modules = [_suite(kind)]
    if kind in KINDS:
        modules.insert(0, importlib.import_module(f"{__name__}.contract"))
    return [
        value
        for module in modules
        for name, value in vars(module).items()
        if name.startswith("check_") and inspect.isfunction(value)
    ]


def _suite(kind: str) -> ModuleType:
    """Return the module with the checks of a kind: a distribution's, or the one in this package.

    A suite that needs a plugin's runtime comes with it, by an entry point of the kind's name; so
    does the suite of a contract that the kernel does not use.
    """
    point = _provided_suites(tuple(sys.path)).get(kind)
    if point is None:
        return importlib.import_module(f"{__name__}.{kind}")
    module: ModuleType = point.load()
    return module


@lru_cache(maxsize=1)
def _provided_suites(path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return other packages' suites by kind, read once per search path: reading the metadata of all
    packages takes milliseconds, and every check of every entry needs a suite.
    """
    return {point.name: point for point in entry_points(group=SUITES)}


def contract_of(kind: str) -> Any:
    """Return the contract of a kind: `CONTRACT` of its suite, or one of `core.contracts`."""
    own = getattr(_suite(kind), "CONTRACT", None)
    module, _, name = {**KINDS, **EXTENSION_POINTS}[kind].contract.partition(".")
    return own or getattr(importlib.import_module(f"core.contracts.{module}"), name)


def cases(*selection: str) -> list[Case]:
    """Return every check of every entry of the selected plugins, loaded alone:
    `cases("./my_plugin.py")`.
    """
    registry = load_plan(make_plan(["none", *selection]))
    config = config_from_kwargs({}, registry.options())
    subjects = [
        Subject(
            registered.kind,
            registered.entry,
            registry.load(registered),
            config,
            registry,
            registered.plugin.builtin,
        )
        for registered in entries_of_named_plugins(registry)
    ]
    return [
        Case(subject, check)
        for subject in [*subjects, *_joints(registry)]
        for check in checks(subject.kind)
    ]


def run(subject: Subject) -> list[CheckResult]:
    """Run every check of the subject's kind; none of them stops the others."""
    return [_run(Case(subject, check)) for check in checks(subject.kind)]


def check_plugin(name: str) -> Iterator[CheckResult]:
    """Load a plugin alone (by name, file or module) and yield the outcome of every check of it,
    static ones first.
    """
    had_torch = "torch" in sys.modules
    try:
        registry = load_plan(make_plan(["none", name]))
    except EngineError as error:
        yield CheckResult(name, "loads", str(error))
        return
    yield CheckResult(name, "loads")
    heavy = "torch" in sys.modules and not had_torch
    advice = (
        "its module imports torch, which every process then waits for; import it in the "
        "target's module"
    )
    yield CheckResult(name, "imports nothing heavy", advice if heavy else None)
    try:
        config = config_from_kwargs({}, registry.options())
        halves = list(_joints(registry))
    except EngineError as error:
        yield CheckResult(name, "its options and hooks can be called", str(error))
        return
    for registered in entries_of_named_plugins(registry):
        try:
            target = registry.load(registered)
        except EngineError as error:
            yield CheckResult(registered.label, "target can be imported", str(error))
        else:
            yield from run(
                Subject(
                    registered.kind,
                    registered.entry,
                    target,
                    config,
                    registry,
                    registered.plugin.builtin,
                )
            )
    for subject in halves:
        yield from run(subject)


def entries_of_named_plugins(registry: Registry) -> list[Registered]:
    """Return the entries of plugins that were selected by name."""
    return [r for kind in KINDS for r in registry.entries(kind) if r.plugin.named]


def _joints(registry: Registry) -> Iterator[Subject]:
    """Yield what named plugins bring at extension points that are no kinds."""
    for ref in registry.plan.plugins:
        for name, point in extension_points(registry, ref) if ref.named else ():
            yield Subject(
                name,
                Entry(ref.name, point.given, EXTENSION_POINTS[name].noun),
                point,
                point.config,
                registry,
                ref.builtin,
            )


def _run(case: Case) -> CheckResult:
    label = f"{case.subject.kind}:{case.subject.entry.name}"
    check = case.check
    try:
        case()
    except AssertionError as error:
        return CheckResult(label, statement(check), str(error), sentence(check))
    except Exception as error:  # noqa: BLE001 - becomes the check's outcome
        return CheckResult(
            label, statement(check), f"raised {type(error).__name__}: {error}", sentence(check)
        )
    return CheckResult(label, statement(check), sentence=sentence(check))


def sentence(check: object) -> str:
    """Return the sentence of the contract that a check holds its subject to."""
    return " ".join((inspect.getdoc(check) or "").split())


def statement(check: object) -> str:
    """Return what a check states, as words."""
    name: str = getattr(check, "__name__", "check")
    return name.removeprefix("check_").replace("_", " ")
