"""The mp executor: tokens match one process, and every rank failure ends with a clear error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from builtin_plugins.executors.mp import executor as mp
from builtin_plugins.executors.pipeline.scheduling import PipelineScheduler
from builtin_plugins.scheduling_policies.fcfs import FirstCome
from core import LLM, SamplingParams
from core.errors import (
    EngineDead,
    EngineError,
    InvalidRequest,
    ModelError,
    PluginError,
    ProcessKilled,
)
from core.testing.checkpoints import make_checkpoint
from core.testing.replay import replay
from tests.builtin_plugins.executors.faulty import TRIGGER
from tests.timeouts import TIMEOUT_S

FAULTY = str(Path(__file__).parent / "faulty.py")
TALKING = str(Path(__file__).parent / "talking.py")
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=7, max_tokens=8, ignore_eos=True)
PROMPTS = [[(7 * i + 3 * j) % 200 for j in range(length)] for i, length in enumerate((60, 33, 3))]


def ranks_of(parent: int) -> list[int]:
    """Return the process ids of the ranks of a parent process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            status = (folder / "stat").read_text()
        except OSError:
            continue
        is_rank = b"builtin_plugins.executors.process.child" in command and "(engine-" not in status
        if is_rank and int(status.rpartition(")")[2].split()[1]) == parent:
            found.append(int(folder.name))
    return found


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Assert that a test leaves no process, file or socket."""
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    assert ranks_of(os.getpid()) == []
    assert list(temporary.glob("engine-*")) == []


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from architecture to its tiny checkpoint, made once."""
    root = tmp_path_factory.mktemp("checkpoints")

    def folder_of(architecture: str) -> Path:
        folder = root / architecture
        return folder if folder.exists() else make_checkpoint(architecture, folder, seed=2)

    return folder_of


@pytest.fixture
def llama(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("LlamaForCausalLM")


def open_engine(folder: Path, tensor: int = 1, pipeline: int = 1, **settings: Any) -> LLM:
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline, "num_threads": 1}
    memory = {
        "dtype": "float32",
        "max_model_len": 96,
        "kv_cache_memory_bytes": 1 << 22,
        "log_level": "error",
    }
    return LLM(str(folder), **(sizes | memory | settings))


def generate(llm: LLM, sampling: SamplingParams) -> list[list[int]]:
    return [
        list(output.outputs[0].token_ids)
        for output in llm.generate(PROMPTS, sampling, use_tqdm=False)
    ]


@torch.inference_mode()
def truth(architecture: str, folder: Path) -> list[list[int]]:
    """Return transformers' greedy tokens."""
    model = (
        getattr(transformers, architecture)
        .from_pretrained(folder, attn_implementation="eager")
        .eval()
    )
    answers = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        for _ in range(GREEDY.max_tokens or 0):
            tokens.append(
                int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax())
            )
        answers.append(tokens[len(prompt) :])
    return answers


@pytest.mark.parametrize(
    ("architecture", "tensor", "pipeline", "settings"),
    [
        ("LlamaForCausalLM", 2, 2, {"async_scheduling": True}),
        ("MixtralForCausalLM", 1, 2, {"async_scheduling": True, "max_num_batched_tokens": 16}),
        pytest.param("LlamaForCausalLM", 2, 1, {"async_scheduling": True}, marks=pytest.mark.slow),
        pytest.param("LlamaForCausalLM", 2, 2, {}, marks=pytest.mark.slow),
        pytest.param("LlamaForCausalLM", 1, 2, {"async_scheduling": True}, marks=pytest.mark.slow),
        pytest.param(
            "MixtralForCausalLM", 2, 1, {"max_num_batched_tokens": 16}, marks=pytest.mark.slow
        ),
        pytest.param("MixtralForCausalLM", 2, 2, {}, marks=pytest.mark.slow),
    ],
)
def test_mp_ranks_match_transformers_and_one_process(
    architecture: str,
    tensor: int,
    pipeline: int,
    settings: dict[str, Any],
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    folder = checkpoint(architecture)
    journal = tmp_path / "journal"
    with open_engine(folder) as llm:
        greedy = generate(llm, GREEDY)
        seeded = generate(llm, SEEDED)
    assert greedy == truth(architecture, folder)
    without = [
        "no:structured_outputs",
        "no:fair_scheduling",
        "no:kv_eviction",
        "no:metrics_prometheus",
    ]
    settings = {"plugins": without, **settings}  # replayed with the pipeline's extension only
    with open_engine(folder, tensor, pipeline, journal=str(journal), **settings) as llm:
        assert len(ranks_of(os.getpid())) == tensor * pipeline
        assert generate(llm, GREEDY) == greedy
        assert generate(llm, SEEDED) == seeded  # from now on prompts begin in the prefix cache
        assert generate(llm, GREEDY) == greedy
    rows = llm.config.scheduler.max_num_seqs or 0
    extensions = [PipelineScheduler(rows, pipeline)] if pipeline > 1 else []
    report = replay(str(journal), policy=FirstCome(), extensions=extensions)
    assert report.num_plans > 20
    assert report.identical, report.difference


@pytest.mark.parametrize(
    ("fault", "error", "parts"),
    [
        (
            "worker 1:start:kill",
            ProcessKilled,
            ["'worker 1' (pid ", "SIGKILL", "stage: loading the plugins"],
        ),
        pytest.param(
            "worker 0:start:exit",
            EngineDead,
            ["'worker 0' (pid ", "status 3", "stage: loading the plugins"],
            marks=pytest.mark.slow,
        ),
        ("worker 1:start:raise", PluginError, ["'worker 1'", "faulty", "broken on purpose"]),
    ],
)
def test_failing_rank_start_names_the_rank(
    fault: str,
    error: type[EngineError],
    parts: list[str],
    llama: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAULT", fault)
    with pytest.raises(error) as raised:
        open_engine(llama, tensor=2, plugins=[FAULTY])
    for part in parts:
        assert part in str(raised.value)


def test_damaged_checkpoint_error_matches_one_process(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in llama.iterdir():
        (folder / path.name).write_bytes(
            path.read_bytes()[: 20_000 if path.suffix == ".safetensors" else None]
        )
    with pytest.raises(ModelError) as raised:
        open_engine(folder, tensor=2)
    for part in ("cannot serve", "is cut off", "stage: loading the model, in process 'worker "):
        assert part in str(raised.value)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("worker 0:forward:kill", marks=pytest.mark.slow),
        "worker 1:forward:exit",
        pytest.param("worker 1:forward:freeze", marks=pytest.mark.slow),
    ],
)
def test_rank_exit_during_step_ends_the_engine(
    fault: str, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", fault)
    process, _, action = fault.split(":")
    with open_engine(llama, tensor=2, plugins=[FAULTY], heartbeat_timeout=4) as llm:
        assert len(generate(llm, GREEDY)) == 3
        with pytest.raises(EngineDead) as raised:
            llm.generate([[5, TRIGGER]], GREEDY, use_tqdm=False)
        cause = {"kill": "SIGKILL", "exit": "status 3", "freeze": "gave no sign of life for 4 s"}[
            action
        ]
        for part in (f"process '{process}' (pid ", "serving", cause):
            assert part in str(raised.value)
        assert isinstance(raised.value, ProcessKilled) == (action != "exit")


def test_death_of_a_rank_ends_an_idle_engine(llama: Path) -> None:
    with open_engine(llama, distributed_executor_backend="mp") as llm:
        llm.core.executor.check_health()  # type: ignore[attr-defined]
        (rank,) = ranks_of(os.getpid())
        os.kill(rank, signal.SIGKILL)
        until_s = time.monotonic() + TIMEOUT_S
        while not llm.core.has_work:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        with pytest.raises(ProcessKilled, match="SIGKILL"):
            llm.core.step()


def test_step_error_on_one_rank_ends_the_engine(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", "worker 1:forward:raise")
    monkeypatch.setattr(mp, "STEP_TIMEOUT_S", 0.3)
    with open_engine(llama, tensor=2, plugins=[FAULTY]) as llm:
        with pytest.raises(EngineDead, match="failed on 1 of 2 ranks") as raised:
            llm.generate([[5, TRIGGER]], GREEDY, use_tqdm=False)
        for part in ("'worker 1' (pid ", "plugin 'faulty'", "ValueError: broken on purpose"):
            assert part in str(raised.value)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "moment"),
    [pytest.param(2, 1, "forward", marks=pytest.mark.slow), (1, 2, "sample")],
)
def test_step_error_on_all_ranks_fails_its_requests(
    tensor: int, pipeline: int, moment: str, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", f"*:{moment}:raise")
    with open_engine(llama, tensor, pipeline, plugins=[FAULTY]) as llm:
        expected = generate(llm, GREEDY)
        failed = llm.generate([[5, TRIGGER]], GREEDY, use_tqdm=False)[0]
        assert failed.outputs[0].finish_reason == "error"
        assert "faulty" in str(failed.error)
        assert generate(llm, GREEDY) == expected


@pytest.mark.parametrize(
    ("tensor", "pipeline", "ahead"),
    [(2, 1, True), pytest.param(1, 2, False, marks=pytest.mark.slow)],
)
def test_payloads_of_all_ranks_are_delivered(
    tensor: int, pipeline: int, ahead: bool, llama: Path
) -> None:
    with open_engine(llama, tensor, pipeline, plugins=[TALKING], async_scheduling=ahead) as llm:
        executor: Any = llm.core.executor
        messages: list[tuple[str, bytes]] = []
        executor.on_message = lambda name, data: messages.append((name, data))
        llm.generate([[5, 7]], GREEDY, use_tqdm=False)
        steps = llm.core.num_steps
        assert steps >= 8
        received = sys.modules["engine_local_talking"].received
        # Sent before the scheduler existed.
        assert sorted(received[:2]) == [b"worker 0 allocates", b"worker 1 allocates"]
        assert received[2:] == [b"worker 0", b"worker 1"] * steps
        assert ("talk", b"worker 0 runs 1") in messages
        assert ("talk", b"worker 1 runs 1") in messages

        assert executor.call("talk.echo", b"!") == [b"worker 0!", b"worker 1!"]
        assert executor.call("talk.other", b"!") == [b"worker 0!"]
        with pytest.raises(InvalidRequest, match="worker takes no salt"):
            executor.call("talk.refuse", b"salt")
        assert executor.call("talk.echo", b"") == [b"worker 0", b"worker 1"]
        with pytest.raises(
            EngineDead, match=r"talk.split failed on 1 of 2 ranks, not on all: 'worker 1' \(pid "
        ):
            executor.call("talk.split", b"salt")
        with pytest.raises(EngineDead):
            llm.generate([[5, 7]], GREEDY, use_tqdm=False)


PROGRAM = """
import sys
from core import LLM
llm = LLM(
    sys.argv[1], dtype="float32", tensor_parallel_size=2, num_threads=1, log_level="error",
    max_model_len=64,
    plugins=["no:structured_outputs"],  # its process is not a rank
)
print("ready", flush=True)
sys.stdin.read()
"""


def test_ranks_exit_with_their_parent(llama: Path) -> None:
    engine = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(llama)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert engine.stdin is not None
    assert engine.stdout is not None
    with engine.stdin, engine.stdout:
        assert engine.stdout.readline() == "ready\n"
        ranks = ranks_of(engine.pid)
        assert len(ranks) == 2
        engine.send_signal(signal.SIGKILL)
        engine.wait()
    until = time.monotonic() + TIMEOUT_S
    while any(
        Path(f"/proc/{rank}/cmdline").exists() and Path(f"/proc/{rank}/cmdline").read_bytes()
        for rank in ranks
    ):
        assert time.monotonic() < until, "ranks live on without their engine"
        time.sleep(0.05)
