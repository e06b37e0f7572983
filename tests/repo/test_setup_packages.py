"""`make setup` installs what serving needs, and nothing else: its list is complete and minimal."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from scripts.pip_options_for_uv import CPU_TORCH, options

ROOT: Final = Path(__file__).parents[2]
NOT_LISTED: Final = {"core", "torch", "setuptools", "triton"}
"""Installed apart, or, as triton, not at all: serving on a CPU does not import it."""


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed_by(name: str) -> set[str]:
    """Return the normalized names of everything that a distribution needs, by its metadata."""
    found: set[str] = set()
    open_names = [name]
    while open_names:
        for line in distribution(open_names.pop()).requires or ():
            requirement = Requirement(line)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            each = normalized(requirement.name)
            if applies and each not in found and each != "triton":
                found.add(each)
                open_names.append(requirement.name)
    return found


def needed_by_torch() -> set[str]:
    """Return what comes with torch, which is installed with its own dependencies."""
    return {name for name in needed_by("torch") if name.startswith(("nvidia", "cuda"))}


def test_serving_requirements_are_all_dependencies_of_the_engine() -> None:
    lines = (ROOT / "requirements-serve.txt").read_text().splitlines()
    listed = [line for line in lines if line and not line.startswith("#")]
    assert listed == sorted(listed)
    assert set(listed) == needed_by("core") - NOT_LISTED - needed_by_torch()


def test_serving_requirements_are_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {normalized(pin.partition("==")[0]) for pin in pins if not pin.startswith("#")}
    lines = (ROOT / "requirements-serve.txt").read_text().splitlines()
    assert {line for line in lines if line and not line.startswith("#")} - pinned == set()


def test_uv_gets_the_package_sources_of_pip() -> None:
    lines = [
        ":env:.find-links='/wheels /more'",
        ":env:.timeout='180'",
        "global.find-links='/other'",
        "global.mirror-url='https://example.com/simple'",
    ]
    assert options(lines) == [
        "--mirror-url", "https://example.com/simple",
        "--find-links", "/wheels",
        "--find-links", "/more",
        "--index-strategy", "unsafe-best-match",
    ]  # fmt: skip


def test_uv_asks_for_cpu_builds_of_torch_where_pip_has_no_source_of_its_own() -> None:
    assert options(["global.timeout='60'"]) == CPU_TORCH
