"""The compared engines: how they are held to an instruction set, and those that are missing."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import compare
from benchmarks.peers.contenders import CHECKPOINT, HELD, Setup, contenders
from benchmarks.peers.make_model import SHAPE
from benchmarks.peers.results import Results

EVERYONE = contenders({16: {}, 8: {}, 4: {}})


@pytest.mark.parametrize("isa", HELD)
def test_isa_holds_every_engine(isa: str, tmp_path: Path) -> None:
    setup = Setup(tmp_path, tmp_path, 2, isa)
    for contender in EVERYONE:
        command = setup.command(contender)
        options = json.loads(command[command.index("--options") + 1])
        assert options.get("isa") == (isa if contender.ours else None)
        assert HELD[isa].items() <= setup.env(contender).items()
        if contender.compiled:
            assert f"llama-{isa}/" in command[0]


def test_engines_are_not_held_without_isa(tmp_path: Path) -> None:
    setup = Setup(tmp_path, tmp_path, 2)
    for contender in EVERYONE:
        assert not HELD["avx2"].keys() & setup.env(contender).keys()
        assert "llama-" not in setup.command(contender)[0]


def test_gguf_files_are_loaded_by_both_engines() -> None:
    models = {c.model for c in EVERYONE if c.ours and c.model.endswith(".gguf")}
    assert models == {c.model for c in EVERYONE if c.compiled} - {"bf16.gguf"}


class SilentChild:
    """A child that is never called."""

    def __init__(self, *arguments: Any) -> None:
        del arguments

    def __enter__(self) -> SilentChild:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def hear(self) -> None:
        pass

    def pause(self) -> None:
        pass


def test_comparison_records_missing_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "Child", SilentChild)
    (tmp_path / CHECKPOINT).mkdir()
    (tmp_path / CHECKPOINT / "config.json").write_text(json.dumps(SHAPE))
    results = Results({}, {})
    with ExitStack() as stack:
        setup = Setup(tmp_path, tmp_path / "absent", 2)
        comparison = compare.Comparison(
            setup, tmp_path, stack, results, compare.Rules(again_within=1.5, others=0.3)
        )
        comparison.enter(next(c for c in EVERYONE if c.name == "OpenVINO"))
    assert str(tmp_path / "absent") in results.missing["OpenVINO"]
