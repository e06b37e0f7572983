"""Medians, ratios, tables and the plot, from runs that are written down here."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.limits import Shape, limit_figures
from benchmarks.peers.plot import draw
from benchmarks.peers.results import Median, Results, Run, Start, medians, ratio
from benchmarks.peers.served import Served
from benchmarks.peers.served import table as served_table
from benchmarks.peers.shared_cores import Shared, fair_share
from benchmarks.peers.shared_cores import table as shared_table
from benchmarks.peers.table import tables
from benchmarks.peers.work import FIRST_MS, TASKS

SHAPE = Shape(
    layers=28, hidden=1024, intermediate=3072, heads=16, kv_heads=8, head_dim=128, vocab=32_000
)
RATE = "tokens/s"


def run(
    contender: str,
    number: int,
    value: float,
    others: float = 0.0,
    *,
    figure: str = RATE,
    task: str = "a",
) -> Run:
    return Run(contender, task, number, {figure: value}, 2.0, others)


def cells(text: str, first: str) -> list[str]:
    """Return the cells of the row that begins with some text."""
    return next(
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if first in line
    )


@pytest.fixture
def results() -> Results:
    rates: list[Mapping[str, Any]] = [
        {"read_bytes_s": n * 1e10, "flop_s": {"small": 1e11, "large": n * 2e11}, "others": n / 10}
        for n in (1, 2, 3, 9)
    ]
    found = Results({"cores": 2}, {}, rates=rates)
    for name, bits, value in (
        ("engine", 16, 90.0),
        ("vLLM", 16, 60.0),
        ("slow", 16, 10.0),
        ("engine int8", 8, 135.0),
    ):
        found.starts.append(Start(name, bits, 2.0, 10**9, 0.0))
        found.runs += [run(name, number, value + number) for number in (-1, 0, 1)]
        found.runs += [run(name, 0, 1000 / value, figure=FIRST_MS, task="d")]
        found.final_pss_bytes[name] = 2 * 10**9
    found.missing["OpenVINO"] = "no such file"
    return found


def test_disturbed_runs_are_left_out_unless_all_are() -> None:
    runs = [
        run("x", 0, 1.0),
        run("x", 1, 3.0),
        run("x", 2, 100.0, 0.9),
        run("y", 0, 5.0, 0.9),
        run("y", 1, 7.0, 0.8),
    ]
    found = medians(runs, 0.3)[("a", RATE)]
    assert found["x"] == Median(2.0, runs=2, dropped=1)
    assert found["y"] == Median(6.0, runs=2, dropped=0, disturbed=True)


def test_a_ratio_above_one_is_always_better() -> None:
    assert ratio(RATE, 30.0, 20.0) == 1.5
    assert ratio(FIRST_MS, 20.0, 30.0) == 1.5


def test_the_machine_gives_the_median_of_the_best_kind_undisturbed(results: Results) -> None:
    rates = results.median_rates(0.3)
    assert (rates.read_bytes_s, rates.flop_s) == (2e10, 4e11)
    assert results.median_rates(0.0).read_bytes_s == 2.5e10


def test_the_table_holds_the_engine_against_the_best_peer_and_the_limit(results: Results) -> None:
    text = tables(results, SHAPE, 0.3)
    row = cells(text, TASKS["a"].about)
    limit = limit_figures(TASKS["a"], SHAPE, results.median_rates(0.3))[RATE]
    assert row[2:] == ["90.0", "60.0", "10.0", f"{limit:.1f}", "1.50", f"{90 / limit:.2f}"]
    first = cells(text, TASKS["d"].about)
    assert first[2:5] == ["11.1 (1 run)", "16.7 (1 run)", "100.0 (1 run)"]
    assert first[6] == "1.50"
    assert "engine int8, 32 requests, 128 in, 64 out, tokens/s: 1.50 times 16 bits" in text
    assert "OpenVINO is not there: no such file" in text
    assert cells(text, "| engine int8 | 2.0")[1:4] == ["2.0", "1000", "2000"]


def test_a_median_of_disturbed_runs_says_so(results: Results) -> None:
    results.runs[:] = [
        run("engine", 0, 5.0, 0.9),
        run("engine", 1, 7.0, 0.8),
        run("vLLM", 0, 4.0),
        run("vLLM", 1, 8.0, 0.8),
    ]
    row = cells(tables(results, SHAPE, 0.3), TASKS["a"].about)
    assert row[2:4] == ["6.0 (disturbed)", "4.0 (1 run, 1 disturbed left out)"]


def test_results_are_saved_as_json(results: Results, tmp_path: Path) -> None:
    results.write(tmp_path / "results.json")
    saved = json.loads((tmp_path / "results.json").read_text())
    assert len(saved["runs"]) == len(results.runs)
    assert saved["runs"][0]["figures"] == {RATE: 89.0}


def test_the_plot_has_a_bar_for_each_median(results: Results) -> None:
    picture = ElementTree.fromstring(draw(results, SHAPE, 0.3))
    bars = [node for node in picture if node.tag.endswith("rect") and "y" in node.attrib]
    assert len(bars) == 2 * len(results.starts)
    widths = [int(bar.attrib["width"]) for bar in bars[:3]]
    assert widths[0] / widths[1] == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize(
    ("threads", "cores", "loops", "share"),
    [
        (2, 2, 0, 1.0),
        (2, 2, 1, 2 / 3),
        (2, 2, 2, 1 / 2),
        (2, 2, 4, 1 / 3),
        (1, 4, 2, 1.0),
        (4, 2, 4, 1 / 2),
    ],
)
def test_a_fair_share_is_an_equal_part_for_every_thread(
    threads: int, cores: int, loops: int, share: float
) -> None:
    assert fair_share(threads, cores, loops) == pytest.approx(share)


def test_shared_cores_are_counted_against_the_rate_alone() -> None:
    alone = [0.1] * 100
    times = [0.2] * 97 + [1.0] * 3
    runs = [
        Shared("engine", 0, 0, alone, 0.0),
        Shared("engine", 2, 0, times, 0.0),
        Shared("engine", 2, 1, [9.0], 1.0),
    ]
    text = shared_table(runs, threads=2, cores=2, others=0.3)
    assert cells(text, "| engine | 0")[2:] == ["10.0", "100%", "100%", "1.0"]
    assert cells(text, "| engine | 2")[2:] == ["4.5", "45%", "89%", "5.0"]


def test_served_figures_are_medians_against_the_best_server() -> None:
    names = (
        "request_throughput",
        "median_ttft_ms",
        "p99_ttft_ms",
        "median_itl_ms",
        "p99_itl_ms",
        "p99_e2el_ms",
        "failed",
    )

    def served(server: str, value: float, others: float = 0.0) -> Served:
        return Served(server, 8, 0, {**dict.fromkeys(names, value), "failed": 0}, others)

    runs = [
        served("engine", 4.0),
        served("engine", 400.0, 1.0),
        served("vLLM", 2.0),
        served("llama.cpp", 1.0),
    ]
    text = served_table(runs, 0.3)
    assert cells(text, "requests/s")[2:] == ["4.00", "2.00", "1.00", "2.00"]
    assert cells(text, "first token, p99 ms")[2:] == ["4.00", "2.00", "1.00", "0.25"]
    assert cells(text, "failed requests")[2:] == ["0.00", "0.00", "0.00", ""]
