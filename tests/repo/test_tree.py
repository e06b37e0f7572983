"""The tree names what it holds: a newcomer finds things by folder and file name alone."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from core.plugin.kinds import KINDS

ROOT: Final = Path(__file__).parents[2]
OUTPUT_PARSERS: Final = {"tool_parsers", "reasoning_parsers"}
"""Kinds that share the folder `output_parsers`: a format is often both."""
NEITHER_KIND_NOR_FEATURE: Final = {"model_sources", "features", "output_parsers"}
"""Model sources answer the hook `engine_find_model`."""

FOUND: Final[Mapping[str, tuple[str, str]]] = {
    "where a KV block is evicted": ("core/kv/pool.py", "class BlockPool"),
    "where a step is planned": ("core/scheduler/planning.py", "class Planner"),
    "where a request is preempted": ("core/scheduler/lifecycle.py", "def preempt"),
    "where a token is sampled": ("builtin_plugins/runners/generate/sampler.py", "class"),
    "where a tool call is parsed": ("builtin_plugins/output_parsers/tools/json_calls.py", "class"),
    "where an adapter is loaded": (
        "builtin_plugins/features/lora/adapter_builder.py",
        "class AdapterBuilder",
    ),
    "where a request is admitted": ("core/frontend/admission.py", "class Admission"),
    "where draft tokens are verified": (
        "builtin_plugins/features/speculation/worker.py",
        "class SpeculationWorker",
    ),
    "where attention reads the paged cache": (
        "builtin_plugins/attention_backends/paged/backend.py",
        "class",
    ),
    "where a checkpoint is loaded": ("core/models/layers/loading.py", "def"),
    "where a scheduler is recorded": (
        "builtin_plugins/features/journal/recorder.py",
        "class Journal",
    ),
    "where chat completions are answered": ("builtin_plugins/routes/openai/chat.py", "class"),
    "where a dead engine process is restarted": (
        "builtin_plugins/clients/process/supervised.py",
        "class",
    ),
}
"""What a newcomer looks for: the file, and what stands in it."""


@pytest.mark.parametrize("question", FOUND)
def test_a_newcomer_finds(question: str) -> None:
    name, content = FOUND[question]
    assert (ROOT / name).is_file()
    assert content in (ROOT / name).read_text(encoding="utf-8")


def test_builtins_are_the_kinds_and_the_features() -> None:
    folders = {
        path.name
        for path in (ROOT / "builtin_plugins").iterdir()
        if path.is_dir() and path.name != "__pycache__"
    }
    kinds = set(KINDS) - OUTPUT_PARSERS
    assert folders - NEITHER_KIND_NOR_FEATURE <= kinds
    assert folders >= NEITHER_KIND_NOR_FEATURE


def test_core_has_few_rooms_on_few_floors() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(each["layers"] for each in contracts["contracts"] if each["type"] == "layers")
    rooms = {path.name for path in (ROOT / "core").iterdir() if path.is_dir()} - {"__pycache__"}
    assert len(rooms) <= 16
    assert len(layers) <= 7


def test_tests_mirror_the_tree() -> None:
    """Each folder of tests for a package has its counterpart in the package."""
    for top, package in (("core", "core"), ("builtin_plugins", "builtin_plugins")):
        folders = {
            path.parent.relative_to(ROOT / "tests" / top)
            for path in (ROOT / "tests" / top).rglob("test_*.py")
        }
        missing = [str(folder) for folder in folders if not (ROOT / package / folder).is_dir()]
        assert sorted(missing) == []
