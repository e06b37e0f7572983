"""Every builtin passes the conformance suite of its kind."""

from __future__ import annotations

import pytest

from core.plugin import KINDS, load_plan, make_plan
from core.plugin.entry import Entry
from core.testing import conformance
from core.testing.conformance import Case, Subject
from core.testing.plugins import tmp_plugin

PARSERS = ("tool_parsers", "reasoning_parsers")


def cases_by_entry() -> dict[str, list[Case]]:
    """Return every check of every entry that this installation brings.

    A further name of an output format has the target of the first, so only what the checks find
    in the entry can differ.
    """
    found: dict[str, list[Case]] = {}
    first_name: dict[tuple[str, int], str] = {}
    for case in conformance.cases(*(ref.name for ref in make_plan().plugins if ref.builtin)):
        subject = case.subject
        name = f"{subject.kind}:{subject.entry.name}"
        is_first = first_name.setdefault((subject.kind, id(subject.target)), name) == name
        of_entry = case.check.__module__.endswith(".contract")
        if is_first or of_entry or subject.kind not in PARSERS:
            found.setdefault(name, []).append(case)
    return found


def is_linear_time(case: Case) -> bool:
    """Whether a case measures how a parser's time grows."""
    return conformance.statement(case.check) == "time grows linearly"


CASES = cases_by_entry()
SLOW = (
    "attention_backends:reference",
    "attention_backends:torch",
    "clients:data_parallel",
    "clients:process",
    "executors:mp",
    "launchers:local",
    "launchers:nodes",
)
"""Entries of many processes or of many shapes; test files of their own use them in every run."""
FORMATS = [name for name in CASES if name.startswith(PARSERS)]
"""Entries of output formats: files of their own read each format's outputs in every run."""


def is_slow(entry: str) -> bool:
    return entry in SLOW or (entry in FORMATS and FORMATS.index(entry) % 3 > 0)


@pytest.mark.parametrize(
    "entry", [pytest.param(name, marks=[pytest.mark.slow] * is_slow(name)) for name in CASES]
)
def test_builtin_passes_conformance(entry: str) -> None:
    for case in CASES[entry]:
        if not is_linear_time(case):
            case()


@pytest.mark.slow  # tests/system/attacks/test_linear_time.py measures every format in each run
@pytest.mark.parametrize("entry", [name for name in CASES if any(map(is_linear_time, CASES[name]))])
def test_builtin_parser_takes_linear_time(entry: str) -> None:
    for case in filter(is_linear_time, CASES[entry]):
        case()


def test_every_builtin_entry_has_a_target_that_can_be_imported() -> None:
    registry = load_plan(make_plan())
    for kind in KINDS:
        for registered in registry.entries(kind):
            registry.load(registered)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_suite_of_its_own(kind: str) -> None:
    checks = conformance.checks(kind)
    assert [check for check in checks if not check.__module__.endswith(".contract")]


class NoKey:
    """A scheduling policy without its method."""


class WrongKey:
    """Scheduling policy with a wrong method signature."""

    def key(self) -> tuple[float, ...]:
        return ()


@pytest.mark.parametrize(
    ("target", "error"),
    [
        (NoKey, "NoKey has no method key; SchedulingPolicy requires it."),
        (
            WrongKey,
            "WrongKey.key(self) cannot be called as the contract's key(request): too many "
            "positional arguments.",
        ),
    ],
)
def test_target_without_contract_methods_fails(target: type, error: str) -> None:
    results = conformance.run(Subject("scheduling_policies", Entry("x", target, "x"), target))
    failed = {result.check: result.error for result in results if not result.passed}
    assert failed["has the methods of its contract"] == error


def test_invalid_summary_fails() -> None:
    results = conformance.run(Subject("commands", Entry("x", "a:b", ""), object))
    assert "summary is one line" in [result.check for result in results if not result.passed]


READS_ITS_OPTION = """
from core.api import Entry, Option, hookimpl

EXAMPLE_TOTALS = {"least": 3}

class Sink:
    def __init__(self, config):
        self.least = config.options["acme_least"]
    def step(self, stats):
        assert self.least == 3
    def request(self, stats):
        pass

@hookimpl
def engine_options():
    return [Option("acme_least", int, 3, "How many.")]

@hookimpl
def engine_metric_sinks():
    return [Entry("acme", Sink, "counts")]
"""


def test_suite_config_has_the_plugins_options() -> None:
    with tmp_plugin(READS_ITS_OPTION) as path:
        failed = [result for result in conformance.check_plugin(path) if not result.passed]
        for case in conformance.cases(path):
            case()
    assert failed == []
