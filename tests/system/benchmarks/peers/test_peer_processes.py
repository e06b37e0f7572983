"""Child processes of a comparison, and a complete comparison with this engine alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.peers import machine
from benchmarks.peers.child import Child, ChildEndedError
from benchmarks.peers.contenders import CHECKPOINT, Setup, choose, contenders
from core.testing.checkpoints import make_checkpoint
from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parents[4]
ECHO = "import sys\nprint('{}', flush=True)\nfor line in sys.stdin: print(line, end='', flush=True)"
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', {ECHO!r}])"


def states(pids: list[int]) -> set[str]:
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}


def test_a_child_answers_and_what_it_cost_is_counted(tmp_path: Path) -> None:
    with Child("echo", [sys.executable, "-S", "-c", ECHO], tmp_path / "log") as child:
        assert child.hear_s() > 0
        answer = child.call({"seconds": 1.5})
        assert answer.content == {"seconds": 1.5}
        assert 0 <= answer.cores <= (os.cpu_count() or 1) + 1
        assert child.pss_bytes() > 1 << 20
    assert child.process.returncode is not None


def test_all_of_a_family_stop_and_go_on(tmp_path: Path) -> None:
    with Child("parent", [sys.executable, "-S", "-c", PARENT], tmp_path / "log") as child:
        child.hear()
        family = child.family()
        assert len(family) == 2
        child.pause()
        late = time.monotonic() + TIMEOUT_S
        while states(family) != {"T"} and time.monotonic() < late:
            os.sched_yield()
        assert states(family) == {"T"}
        child.resume()
        assert child.call({"again": 1}).content == {"again": 1}
    assert not any(Path(f"/proc/{pid}").exists() for pid in family[:1])


def test_a_child_that_has_ended_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", "raise SystemExit('no such model')"]
    with (
        Child("broken", command, tmp_path / "log") as child,
        pytest.raises(ChildEndedError, match="no such model"),
    ):
        child.hear()


def test_processor_time_of_a_process_grows_with_its_work() -> None:
    before = machine.cpu_s([os.getpid()])
    busy = machine.busy_s()
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert machine.cpu_s([os.getpid()]) - before >= 0.08
    assert machine.busy_s() - busy >= 0.08


def test_contenders_are_chosen_by_name_and_bits() -> None:
    everyone = contenders({16: {}, 8: {"quantization": "x"}})
    assert [one.name for one in choose(everyone, [8], [])] == [
        "engine int8",
        "engine Q8_0",
        "OpenVINO int8",
        "llama.cpp Q8_0",
    ]
    assert [one.name for one in choose(everyone, [16], ["ENGINE", "llama"])] == [
        "engine",
        "llama.cpp",
    ]
    assert next(one for one in everyone if one.bits == 8).options["quantization"] == "x"


def test_what_is_not_installed_is_named(tmp_path: Path) -> None:
    vllm = next(one for one in contenders({}) if one.name == "vLLM")
    setup = Setup(tmp_path, tmp_path / "peers", threads=2)
    assert setup.missing(vllm) == f"no {tmp_path}/peers/vllm/bin/python"
    assert setup.env(vllm)["VLLM_CPU_OMP_THREADS_BIND"] == "0,1"


@pytest.mark.slow  # a whole comparison
def test_comparison_measures_this_engine_and_names_missing_peers(tmp_path: Path) -> None:
    sizes = {"vocab_size": 32_000, "max_position_embeddings": 2048}
    make_checkpoint("Qwen3ForCausalLM", tmp_path / "models" / CHECKPOINT, **sizes)
    folders = [
        "--models",
        f"{tmp_path}/models",
        "--peers",
        f"{tmp_path}/none",
        "--out",
        f"{tmp_path}/out",
    ]
    chosen = [
        "--only",
        "engine,vllm",
        "--tasks",
        "dp",
        "--rounds",
        "2",
        "--threads",
        "1",
        "--others",
        "99",
    ]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.compare", *folders, *chosen],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(run["contender"], run["task"], run["round"]) for run in results["runs"]] == [
        ("engine", task, number) for number in (0, 1) for task in "dp"
    ]
    assert all(value > 0 for run in results["runs"] for value in run["figures"].values())
    assert len(results["rates"]) == 2
    assert "vllm/bin/python" in results["missing"]["vLLM"]
    assert (
        "| 1 request, 1024 in, 1 out | prompt tokens/s |"
        in (tmp_path / "out" / "table.md").read_text()
    )
    assert (tmp_path / "out" / "plot.svg").read_text().startswith("<svg")
