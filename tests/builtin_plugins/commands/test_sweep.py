"""`engine bench sweep serve`: generated commands, servers, saved results and resume."""

from __future__ import annotations

import json
import shlex
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.commands.bench.sla import largest
from builtin_plugins.commands.bench.sweep_grid import Point, command, points, read_settings
from core.cli.main import main
from core.errors import ConfigError

SERVER = '''
"""Logs its start and its requests."""
import http.server, sys
log = open(sys.argv[1], "a", buffering=1)
log.write("started " + " ".join(sys.argv[4:]) + "\\n")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        log.write(self.path + "\\n"); self.send_response(200); self.end_headers()
    def log_message(self, *arguments): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[3])), Handler).serve_forever()
'''
BENCH = '''
"""Writes its arguments as results; fails on --fail."""
import json, sys
if "--fail" in sys.argv: sys.exit(3)
file = sys.argv[sys.argv.index("--output-json") + 1]
rate = float(sys.argv[sys.argv.index("--request-rate") + 1]) if "--request-rate" in sys.argv else 0
result = {"request_throughput": 2.5, "p99_ttft_ms": 10 * rate, "median_ttft_ms": 10.0}
result |= {"errors": [], "argv": " ".join(sys.argv[1:])}
json.dump(result, open(file, "w"))
'''


class Sweep:
    """A folder with a fake server, a fake benchmark and settings files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "server.py").write_text(SERVER)
        (folder / "bench.py").write_text(BENCH)
        self.log = folder / "server.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        python = shlex.quote(sys.executable)
        self.serve = f"{python} {folder / 'server.py'} {self.log} --port {port} --size 1"
        self.bench = f"{python} {folder / 'bench.py'}"

    def run(self, *flags: str, bench: str = "", what: str = "serve") -> int:
        commands = [
            "--serve-cmd",
            self.serve,
            "--bench-cmd",
            self.bench + bench,
            "-o",
            str(self.folder / "out"),
        ]
        return main(["bench", "sweep", what, *commands, *flags])

    def params(self, name: str, value: Any) -> str:
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(value))
        return str(file)


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


def test_dry_run_prints_every_command(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    serve = sweep.params("serve", [{"size": 2}, {"size": 3}])
    bench = sweep.params("bench", [{"rate": 1}, {"rate": 2}])
    assert (
        sweep.run("--serve-params", serve, "--bench-params", bench, "--dry-run", "--num-runs", "5")
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith(("--size 2", "--size 3")) for line in lines] == [
        True,
        False,
        False,
        True,
        False,
        False,
    ]
    assert lines[1].startswith("  5 x ")
    assert "--rate 1 --output-json" in lines[1]
    assert not sweep.log.exists()
    assert not (sweep.folder / "out").exists()


def test_sweep_saves_every_run(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    bench = sweep.params("bench", {"slow": {"rate": 1}, "fast": {"rate": 2}})
    assert sweep.run("--bench-params", bench, "--num-runs", "2") == 0
    assert sweep.log.read_text().splitlines() == ["started --size 1", *["/reset_prefix_cache"] * 4]
    (folder,) = (sweep.folder / "out").iterdir()
    rows = json.loads((folder / "summary.json").read_text())
    assert [(row["combination"], row["run"], row["rate"]) for row in rows] == [
        *(("serve-plain--bench-slow", number, 1) for number in "01"),
        *(("serve-plain--bench-fast", number, 2) for number in "01"),
    ]
    assert (folder / "summary.csv").read_text().splitlines()[0].startswith("combination,run,")
    assert "2.50" in capsys.readouterr().out

    (folder / "serve-plain--bench-fast" / "run=1.json").unlink()  # simulates an interrupted sweep
    assert sweep.run("--bench-params", bench, "--num-runs", "2", "--resume", folder.name) == 0
    assert sweep.log.read_text().splitlines()[5:] == ["started --size 1", "/reset_prefix_cache"]
    assert len(json.loads((folder / "summary.json").read_text())) == 4


def test_failed_run_leaves_no_result(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.run(bench=" --fail") == 1
    assert "the benchmark ended with exit status 3" in capsys.readouterr().err
    assert list((sweep.folder / "out").rglob("*.json")) == []
    sweep.serve = f"{shlex.quote(sys.executable)} -c 'raise SystemExit(4)'"
    assert sweep.run() == 1
    assert "the server ended with exit status 4" in capsys.readouterr().err


@pytest.mark.parametrize(("limit", "found"), [(0, 0), (1, 1), (5, 5), (16, 16), (40, 16)])
def test_search_finds_the_largest_passing_value(limit: int, found: int) -> None:
    tried: list[int] = []

    def holds(value: int) -> bool:
        tried.append(value)
        return value <= limit

    assert largest(holds, 16) == found
    assert len(set(tried)) == len(tried) <= 8


def test_sla_search_saves_the_largest_load(
    sweep: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    bounds = sweep.params("sla", [{"p99_ttft_ms": "<=30"}])
    bench = sweep.params("bench", {"short": {"size": 1}})
    assert (
        sweep.run(
            "--sla-params", bounds, "--bench-params", bench, "--num-runs", "1", what="serve_sla"
        )
        == 0
    )
    assert "p99_ttft_ms <=30: request_rate 3" in capsys.readouterr().out
    (folder,) = (sweep.folder / "out").iterdir()
    assert json.loads((folder / "sla.jsonl").read_text())["request_rate"] == 3
    assert [row["request_rate"] for row in json.loads((folder / "summary.json").read_text())] == [
        1,
        2,
        4,
        3,
    ]


@pytest.mark.parametrize(
    ("sla", "bench", "message"),
    [
        ([{"p99_ttft_ms": "fast"}], [{}], "give a comparison"),
        ([{"p99_ttft_ms": "<1"}], [{"request_rate": 2}], "Omit it"),
        ([{"p98": "<1"}], [{}], "has no metric 'p98'"),
    ],
)
def test_unmeasured_sla_metric_is_rejected(
    sweep: Sweep, capsys: pytest.CaptureFixture[str], sla: Any, bench: Any, message: str
) -> None:
    params = sweep.params("sla", sla), sweep.params("bench", bench)
    flags = ("--sla-params", params[0], "--bench-params", params[1], "--num-runs", "1")
    assert sweep.run(*flags, what="serve_sla") in (1, 2)
    assert message in capsys.readouterr().err


def test_settings_override_flags_of_the_command() -> None:
    settings = {
        "max_num_seqs": 8,
        "enable_x": True,
        "prefix": False,
        "gone": None,
        "json": {"a": 1},
        "_name": "n",
    }
    words = command("engine serve m --max-num-seqs=4 --max_num_seqs 2 --port 8000", settings)
    assert words == [
        *[
            "engine",
            "serve",
            "m",
            "--port",
            "8000",
            "--max-num-seqs",
            "8",
            "--enable-x",
            "--no-prefix",
            "--json",
        ],
        '{"a": 1}',
    ]


def test_sweep_points_have_file_names() -> None:
    ((_, (point,)),) = points([{"a": 1, "b": "x/y z"}], [{}])
    assert point.folder == "serve-a=1,b=x_y_z--bench-plain"
    assert Point({"_name": "small"}, {"_name": "fast"}).folder == "serve-small--bench-fast"


@pytest.mark.parametrize("text", ["", "5", "[]", "[1]", '{"a": 1}', "{"])
def test_invalid_settings_are_rejected(tmp_path: Path, text: str) -> None:
    file = tmp_path / "params.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="--bench-params"):
        read_settings("--bench-params", str(file))


def test_subcommands_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "sweep", "--help"]) == 0
    assert "serve" in capsys.readouterr().out
    assert main(["bench", "sweep", "serv"]) == 2
    assert "did you mean 'serve'" in capsys.readouterr().err
