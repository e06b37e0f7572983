"""Compares servers: the same closed loop of HTTP requests at several concurrencies.

64 prompt tokens and 32 output tokens, sent by `engine bench serve`; prompts are token ids. All
servers but the active one are paused. Writes served.json and served.md.

Run: python -m benchmarks.peers.served --models FOLDER --peers FOLDER [--only NAME,NAME] [--rounds
N] [--concurrency 8,64]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import machine
from benchmarks.peers.child import Child, unwind_on_terminate
from benchmarks.peers.contenders import CHECKPOINT, KV_GB, OURS, VLLM_ENV, Contender, Setup

COMMAND: Final = (
    sys.executable,
    "-P",
    "-c",
    "import sys; from core.cli.main import main; sys.exit(main())",
)
FAILED: Final = "failed"
FIGURES: Final = {
    "request_throughput": "requests/s",
    "median_ttft_ms": "first token, median ms",
    "p99_ttft_ms": "first token, p99 ms",
    "median_itl_ms": "between tokens, median ms",
    "p99_itl_ms": "between tokens, p99 ms",
    "p99_e2el_ms": "whole request, p99 ms",
    FAILED: "failed requests",
}
TIMEOUT_S: Final = 600.0
WAVES: Final = 3
"""Number of requests of a run, as a multiple of the concurrency."""


@dataclass(frozen=True, slots=True)
class Served:
    """One run of the client."""

    server: str
    concurrency: int
    round: int
    figures: Mapping[str, float]
    others: float
    """Mean cores used by neither the server nor the client."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    child: Child
    url: str
    ready_s: float


def servers(setup: Setup) -> list[tuple[Contender, list[str]]]:
    """Return the contenders with a server, and their commands with `{port}`."""
    model = str(setup.models / CHECKPOINT)
    threads = str(setup.threads)
    vllm = Contender("vLLM", "", CHECKPOINT, "vllm", env=VLLM_ENV)
    llama = Contender("llama.cpp", "", "bf16.gguf", "llama")
    ours = Contender(OURS, "", CHECKPOINT)
    length = ["--max-model-len", "2048"]
    cache = ["--kv-cache-memory-bytes", str(KV_GB << 30), "--num-threads", threads]
    quiet = ["--disable-uvicorn-access-log"]
    vllm_bin = setup.peers / "vllm" / "bin" / "vllm"
    llama_bin = setup.peers / "llama" / "bin" / "llama-server"
    gguf = ["-m", str(setup.models / llama.model), "--threads", threads, "-np", "64", "-c", "8192"]
    return [
        (ours, [*COMMAND, "serve", model, *length, *cache, *quiet, "--port", "{port}"]),
        (
            vllm,
            [
                str(vllm_bin),
                "serve",
                model,
                "--dtype",
                "bfloat16",
                *length,
                *quiet,
                "--port",
                "{port}",
            ],
        ),
        (llama, [str(llama_bin), *gguf, "--port", "{port}"]),
    ]


def start(contender: Contender, command: Sequence[str], setup: Setup, log: Path) -> Server:
    """Start a server and wait until it generates a token.

    Raises `TimeoutError` after a timeout.
    """
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = [part.format(port=port) for part in command]
    child = Child(contender.name, given, log, setup.env(contender), answers=False)
    url = f"http://127.0.0.1:{port}"
    while time.monotonic() - child.began < TIMEOUT_S and child.process.poll() is None:
        try:
            generate_one(url)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
        else:
            return Server(child, url, time.monotonic() - child.began)
    child.close()
    raise TimeoutError(f"{contender.name} made no token within {TIMEOUT_S:.0f} s; {log} says why.")


def generate_one(url: str) -> None:
    """Generate one token."""
    with urllib.request.urlopen(f"{url}/v1/models") as answer:
        model = json.loads(answer.read())["data"][0]["id"]
    body = json.dumps(
        {"model": model, "prompt": list(range(1000, 1016)), "max_tokens": 1, "temperature": 0}
    ).encode()
    request = urllib.request.Request(
        f"{url}/v1/completions", body, {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request).close()


def load(
    server: Server, model: Path, concurrency: int, seed: int, file: Path
) -> tuple[dict[str, Any], float]:
    """Run the client against a server; return its figures, and the mean cores of others."""
    sizes = ["--num-prompts", str(WAVES * concurrency), "--max-concurrency", str(concurrency)]
    lengths = ["--input-len", "64", "--output-len", "32", "--num-warmups", "0", "--seed", str(seed)]
    arguments = ["--base-url", server.url, "--tokenizer", str(model), "--output-json", str(file)]
    server.child.resume()
    own_s = machine.cpu_s(server.child.family())
    all_s = machine.busy_s()
    began = time.monotonic()
    client_s = sum(os.times()[2:4])
    subprocess.run(
        [*COMMAND, "bench", "serve", *arguments, *sizes, *lengths],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    elapsed_s = time.monotonic() - began
    own_s = machine.cpu_s(server.child.family()) - own_s + sum(os.times()[2:4]) - client_s
    others = max(0.0, machine.busy_s() - all_s - own_s) / elapsed_s
    server.child.pause()
    return json.loads(file.read_text()), others


def table(runs: Sequence[Served], others: float) -> str:
    """Return medians of undisturbed runs as markdown; the last column is the ratio to the best
    peer.
    """
    names = list(dict.fromkeys(run.server for run in runs))
    text = f"| concurrency | figure | {' | '.join(names)} | engine / best |\n"
    text += f"| --- | --- |{' ---: |' * (len(names) + 1)}\n"
    for concurrency in dict.fromkeys(run.concurrency for run in runs):
        for figure, title in FIGURES.items():
            found: dict[str, float] = {}
            for name in names:
                mine = [run for run in runs if (run.server, run.concurrency) == (name, concurrency)]
                counted = [run for run in mine if run.others <= others] or mine
                found[name] = statistics.median(run.figures[figure] for run in counted)
            rest = [value for name, value in found.items() if name != OURS]
            against = ""
            if OURS in found and rest and figure != FAILED:
                less_is_better = figure.endswith("_ms")
                times = min(rest) / found[OURS] if less_is_better else found[OURS] / max(rest)
                against = f"{times:.2f}"
            cells = " | ".join(f"{found[name]:.2f}" for name in names)
            text += f"| {concurrency} | {title} | {cells} | {against} |\n"
    return text


def main() -> None:
    """Serve, measure, write and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    Setup.add_arguments(parser)
    parser.add_argument(
        "--only", type=lambda text: text.lower().split(","), default=[], help="names"
    )
    parser.add_argument(
        "--concurrency", type=lambda text: [int(part) for part in text.split(",")], default=[8, 64]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--others",
        type=float,
        default=0.3,
        help="maximum cores of other processes during a run that counts",
    )
    parser.add_argument("--out", type=Path, default=Path("peers-results"))
    given = parser.parse_args()
    unwind_on_terminate()
    given.out.mkdir(parents=True, exist_ok=True)
    setup = Setup(given.models, given.peers, given.threads)
    order = random.Random(0)
    runs: list[Served] = []
    with ExitStack() as stack:
        running = []
        for contender, command in servers(setup):
            problem = setup.missing(contender) or (
                None if Path(command[0]).exists() else f"no {command[0]}"
            )
            if problem or (given.only and contender.name.lower() not in given.only):
                print(f"{contender.name} is skipped{f': {problem}' if problem else ''}", flush=True)
                continue
            running.append(
                start(contender, command, setup, given.out / f"serve_{contender.name}.log")
            )
            stack.enter_context(running[-1].child)
            print(
                f"{contender.name}: first token {running[-1].ready_s:.1f} s after its start",
                flush=True,
            )
            load(running[-1], given.models / CHECKPOINT, 8, 1000, given.out / "client.json")
        for number in range(given.rounds):
            for concurrency in given.concurrency:
                order.shuffle(running)
                for server in running:
                    found, others = load(
                        server,
                        given.models / CHECKPOINT,
                        concurrency,
                        number,
                        given.out / "client.json",
                    )
                    figures = {name: found[name] for name in FIGURES}
                    runs.append(Served(server.child.name, concurrency, number, figures, others))
                    print(
                        f"round {number + 1}, {concurrency} at once, {server.child.name}: "
                        f"{figures}",
                        flush=True,
                    )
            (given.out / "served.json").write_text(
                json.dumps([asdict(run) for run in runs], indent=1) + "\n"
            )
    text = table(runs, given.others)
    (given.out / "served.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
