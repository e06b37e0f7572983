"""Step times of a served engine compared with an offline engine, interleaved.

Both engines hold the same model; rounds alternate between `LLM.generate` and the same number of
HTTP streams through `engine serve` from `engine bench serve`. Times come from the engines'
journals: a step is from plan to result, a period from result to result. Only steps in which every
sequence decodes one token count. Also prints the mean of the server's own step metric, and the CPU
time of the API process.

Without --model a random one in the shape of Qwen3-0.6B is created (a minute, 3 GB of memory).

Run: python benchmarks/serving/step_time_while_serving.py [--model FOLDER] [--batch N] [--rounds N]
[--output-len N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from core import LLM, SamplingParams
from core.step import StepPlan
from core.testing.checkpoints import make_checkpoint

ENGINE = (
    sys.executable,
    "-P",
    "-c",
    "import sys; from core.cli.main import main; sys.exit(main())",
)
TARGET = 1.05
VOCAB = 32_000
SHAPE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "head_dim": 128,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": VOCAB,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}

Interval = tuple[float, float]


@dataclass(frozen=True)
class Steps:
    """Step times of one engine in seconds."""

    step_s: list[float]
    period_s: list[float]


@dataclass
class Server:
    """A served engine."""

    process: subprocess.Popen[str]
    url: str

    def cpu_s(self) -> float:
        """Return the CPU time of the API process in seconds."""
        stats = [stat.read_text() for stat in Path("/proc").glob("[0-9]*/stat") if stat.exists()]
        below = f") S {self.process.pid} ", f") R {self.process.pid} "
        apart = (
            stat for stat in stats if "(engine-api)" in stat and any(part in stat for part in below)
        )
        serving = next(apart, Path(f"/proc/{self.process.pid}/stat").read_text())
        fields = serving.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def step_metric(self) -> tuple[float, float]:
        """Return sum and count of the step time metric."""
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            text = answer.read().decode()
        found = [
            re.search(rf"^engine_step_time_seconds_{part}\S* (\S+)$", text, re.MULTILINE)
            for part in ("sum", "count")
        ]
        assert all(found), "the server shows no engine_step_time_seconds"
        return tuple(float(one[1]) for one in found if one)  # type: ignore[return-value]


@contextmanager
def served(model: Path, flags: list[str]) -> Iterator[Server]:
    """Start a server and stop it."""
    command = [*ENGINE, "serve", str(model), "--port", "0", "--disable-uvicorn-access-log", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Server(process, process.stdout.readline().split()[-1])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        process.stdout.close()


def run_offline(llm: LLM, args: argparse.Namespace, seed: int) -> Interval:
    """Run a batch; return its interval."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(1, 200) for _ in range(args.input_len)] for _ in range(args.batch)]
    params = SamplingParams(temperature=0, max_tokens=args.output_len, ignore_eos=True)
    began = time.monotonic()
    llm.generate(prompts, params, use_tqdm=False)
    return began, time.monotonic()


def run_served(
    server: Server, args: argparse.Namespace, seed: int, folder: Path
) -> tuple[Interval, dict[str, Any]]:
    """Run as many streams; return the interval, and the client's results."""
    file = folder / "served.json"
    sizes = [
        "--num-prompts",
        str(args.batch),
        "--input-len",
        str(args.input_len),
        "--output-len",
        str(args.output_len),
    ]
    flags = [
        "--base-url",
        server.url,
        "--num-warmups",
        "0",
        "--seed",
        str(seed),
        "--output-json",
        str(file),
    ]
    began = time.monotonic()
    subprocess.run(
        [*ENGINE, "bench", "serve", *sizes, *flags], check=True, stdout=subprocess.DEVNULL
    )
    return (began, time.monotonic()), json.loads(file.read_text())


def read_steps(journal: Path, intervals: list[Interval], batch: int) -> Steps:
    """Return the decode-only steps within the intervals."""
    data = journal.read_bytes()
    at = 0
    planned: dict[int, float] = {}
    step_s = []
    period_s = []
    last = (0.0, -1)
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        frame = msgspec.msgpack.decode(data[at + 4 : at + 4 + size])
        at += 4 + size
        if not isinstance(frame, list):
            continue  # header
        kind = frame[0]
        clock_s = frame[1]
        content = frame[3]
        if kind == "plan":
            plan = msgspec.convert(content, StepPlan)
            if len(plan.decode_rows) + len(plan.rows) == batch == plan.num_tokens:
                planned[plan.step] = clock_s
        elif (
            kind == "result"
            and content[0] in planned
            and any(a <= clock_s <= b for a, b in intervals)
        ):
            step_s.append(clock_s - planned[content[0]])
            if last[1] == content[0] - 1:
                period_s.append(clock_s - last[0])
            last = clock_s, content[0]
    return Steps(step_s, period_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="folder of a checkpoint")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--input-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--num-threads", type=int, help="of each engine; default: what it chooses")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or make_checkpoint("Qwen3ForCausalLM", Path(folder) / "model", **SHAPE)
        measure(model, args, Path(folder))


def measure(model: Path, args: argparse.Namespace, folder: Path) -> None:
    """Run the rounds and print the table."""
    settings = {"max_model_len": 512, "kv_cache_memory_bytes": 1 << 29, "log_level": "error"}
    if args.num_threads:
        settings["num_threads"] = args.num_threads
    flags = [
        part
        for name, value in settings.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    journals = folder / "offline", folder / "served"
    offline: list[Interval] = []
    online: list[Interval] = []
    cpu_s = tokens = 0.0
    with (
        LLM(str(model), journal=str(journals[0]), **settings) as llm,  # type: ignore[arg-type]
        served(model, [*flags, "--journal", str(journals[1])]) as server,
    ):
        for seed in (0, 1):
            run_offline(llm, args, seed)
            run_served(server, args, seed, folder)
        metric = server.step_metric()
        for seed in range(2, 2 + args.rounds):
            offline.append(run_offline(llm, args, seed))
            before_s = server.cpu_s()
            interval, result = run_served(server, args, seed, folder)
            cpu_s += server.cpu_s() - before_s
            online.append(interval)
            tokens += result["total_output_tokens"]
        sums, counts = (
            after - before for after, before in zip(server.step_metric(), metric, strict=True)
        )
    sides = [
        read_steps(journal, times, args.batch)
        for journal, times in zip(journals, (offline, online), strict=True)
    ]
    show(sides, args)
    print(
        f"served, mean of engine_step_time_seconds (all steps): {1e3 * sums / counts:.2f} ms, "
        f"{counts:.0f} steps"
    )
    print(
        f"processor time of the API process: {1e3 * cpu_s / tokens:.3f} s per 1,000 streamed tokens"
    )


def show(sides: list[Steps], args: argparse.Namespace) -> None:
    """Print medians and their ratios."""
    print(
        f"{args.batch} sequences, {args.rounds} rounds each, interleaved; steps in which all "
        "decode; medians"
    )
    print(f"{'':>10} {'steps':>7} {'step ms':>9} {'period ms':>10}")
    medians = []
    for name, side in zip(("offline", "served"), sides, strict=True):
        step = statistics.median(side.step_s)
        period = statistics.median(side.period_s)
        medians.append((step, period))
        print(f"{name:>10} {len(side.step_s):>7} {1e3 * step:>9.2f} {1e3 * period:>10.2f}")
    (step, period), (served_step, served_period) = medians
    print(
        f"{'ratio':>10} {'':>7} {served_step / step:>9.3f} {served_period / period:>10.3f}   "
        f"(target: {TARGET})"
    )


if __name__ == "__main__":
    main()
