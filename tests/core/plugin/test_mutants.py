"""Conformance suites pass the template plugins and fail every mutant."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from builtin_plugins.commands.plugins.scaffold import TARGETS, write_package
from core.testing.conformance import CheckResult, check_plugin, clients
from tests.core.plugin.mutants import MUTANTS, SURVIVORS, Change

IDS = count()
ALL = [(kind, change) for kind, changes in MUTANTS.items() for change in changes]


@contextmanager
def written(kind: str, folder: Path, change: Change | None = None) -> Iterator[str]:
    """Yield the module of a new package, with a change in one of its files."""
    name = f"mutant_{next(IDS)}"
    write_package(name, kind, folder)
    package = folder / f"engine_{name}"
    if change is not None:
        _, old, new = (text.replace("acme", name) for text in change)
        (file,) = [file for file in package.glob("*.py") if old in file.read_text()]
        text = file.read_text().replace(old, new)
        if "RopeSpec" in new:
            text = text.replace("NormSpec,", "NormSpec, RopeSpec,")
        file.write_text(text)
    sys.path.insert(0, str(folder))
    try:
        yield f"engine_{name}.plugin"
    finally:
        sys.path.remove(str(folder))
        for module in [module for module in sys.modules if module.startswith(f"engine_{name}")]:
            del sys.modules[module]


def failures(kind: str, folder: Path, change: Change | None = None) -> Iterator[CheckResult]:
    with written(kind, folder, change) as module:
        yield from (result for result in check_plugin(module) if not result.passed)


def test_every_kind_and_extension_point_has_mutants() -> None:
    assert MUTANTS.keys() == TARGETS.keys()
    assert set(SURVIVORS) <= {(kind, change[0]) for kind, change in ALL}


@pytest.mark.parametrize("kind", MUTANTS)
def test_ninety_percent_of_mutants_are_caught(kind: str) -> None:
    survivors = [what for of, what in SURVIVORS if of == kind]
    assert 1 - len(survivors) / len(MUTANTS[kind]) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("kind", TARGETS)
def test_unmodified_package_passes(kind: str, tmp_path: Path) -> None:
    assert list(failures(kind, tmp_path)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "change"), ALL, ids=[f"{kind}: {change[0]}" for kind, change in ALL]
)
def test_mutant_is_caught(
    kind: str, change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_WAIT_S", 10.0)  # what never comes need not be waited for
    found = next(failures(kind, tmp_path, change), None)
    assert (found is None) is ((kind, change[0]) in SURVIVORS)
