"""`engine bench sweep plot` and `plot_pareto`: filters, panels and the Pareto frontier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.commands.bench.sweep_plots import Measured, pareto_frontier
from core.cli.main import main
from core.errors import ConfigError

ROWS = [
    {
        "combination": f"s{size}-c{clients}",
        "run": run,
        "size": size,
        "max_concurrency": clients,
        "backend": "openai",
        "output_throughput": 100.0 * clients / (1 + clients / size) + run,
        "p99_e2el_ms": 10.0 * clients + run,
    }
    for size in (8, 64)
    for clients in (1, 16, 4)
    for run in (0, 1, 2)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, size in (("one", 8), ("two", 64)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(
            json.dumps([row for row in ROWS if row["size"] == size])
        )
    return tmp_path


def test_curve_has_mean_and_deviation_of_runs(folder: Path) -> None:
    groups = Measured.read(folder).by(["size"])
    assert list(groups) == ["size=8", "size=64"]
    curve = groups["size=8"].curve("max_concurrency", "p99_e2el_ms")
    assert (curve.x, curve.y) == ([1, 4, 16], [11, 41, 161])
    assert curve.apart == pytest.approx([(2 / 3) ** 0.5] * 3)


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        ("", 18),
        ("max_concurrency<=4", 12),
        ("max_concurrency>1, size==64", 6),
        ("backend==openai,run!=0", 12),
        ("backend=='openai'", 18),
        ("size<9,max_concurrency<4", 3),
    ],
)
def test_filter_selects_runs(conditions: str, left: int) -> None:
    assert len(Measured(ROWS).where(conditions).rows) == left


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ("size", "give a comparison, such as"),
        ("sizes<3", "--filter-by sizes: no run has it; did you mean 'size'"),
        ("size>64", "no runs match"),
        ("backend<3", "no runs match"),
    ],
)
def test_invalid_filter_is_rejected(conditions: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Measured(ROWS).where(conditions)


def test_pareto_frontier() -> None:
    points = [
        (1.0, 9.0, "a"),
        (2.0, 9.0, "b"),
        (3.0, 5.0, "c"),
        (2.5, 5.0, "d"),
        (4.0, 1.0, "e"),
        (1.5, 1.0, "f"),
    ]
    assert [label for _, _, label in pareto_frontier(points)] == ["b", "c", "e"]


@pytest.mark.parametrize(
    ("what", "flags", "files"),
    [
        ("plot", ["--curve-by", "size", "--var-x", "max_concurrency"], ["FIGURE.png"]),
        (
            "plot",
            [
                "--fig-by",
                "size",
                "--row-by",
                "backend",
                "--col-by",
                "max_concurrency",
                "--var-x",
                "run",
                "--scale-y",
                "log",
                "--fig-name",
                "a",
            ],
            ["a-size=64.png", "a-size=8.png"],
        ),
        (
            "plot_pareto",
            ["--gpu-count-var", "size", "--label-by", "size,max_concurrency"],
            ["FIGURE-pareto.png"],
        ),
    ],
)
def test_plots_of_sweeps_are_drawn(
    what: str, flags: list[str], files: list[str], folder: Path, capsys: Any
) -> None:
    pytest.importorskip("matplotlib")
    common = [
        "--fig-dir",
        str(folder / "drawn"),
        *(["--var-y", "p99_e2el_ms"] if what == "plot" else []),
    ]
    assert main(["bench", "sweep", what, str(folder), *flags, *common, "--dry-run"]) == 0
    assert not (folder / "drawn").exists()
    assert main(["bench", "sweep", what, str(folder), *flags, *common]) == 0
    assert sorted(file.name for file in (folder / "drawn").iterdir()) == files
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in (folder / "drawn").iterdir())
    output = capsys.readouterr().out
    assert all(f"Would draw: {folder / 'drawn' / name}" in output for name in files)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["plot", "nowhere"], "has no summary.json"),
        (
            ["plot", ".", "--var-x", "run", "--var-y", "p99_e2e_ms"],
            "--var-y p99_e2e_ms: no run has it; did you mean 'p99_e2el_ms'",
        ),
        (["plot", ".", "--curve-by", "sizes"], "--curve-by sizes: no run has it"),
        (
            ["plot_pareto", ".", "--user-count-var", "users"],
            "--user-count-var users: no run has it",
        ),
    ],
)
def test_invalid_plot_request_is_rejected(
    flags: list[str], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(folder)
    assert main(["bench", "sweep", *flags, "--dry-run"]) != 0
    assert message in capsys.readouterr().err
