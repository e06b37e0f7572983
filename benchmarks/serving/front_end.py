"""CPU cost of a streamed chunk in the API process, compared with a bare writer and FastAPI.

The engine is a mock: scheduler and engine process are real; tokens are random and arrive at a fixed
pace, so that each is one event (`--pace 0` removes the limit). Default: 512 streams of 128 tokens.
Cost is the CPU time of the API process, including the kernel; the cost of starting requests is
measured with one-token streams and subtracted. Sides alternate.

Run: python benchmarks/serving/front_end.py [--streams N] [--tokens N] [--pace STEPS_PER_SECOND]
[--rounds N] [--route chat]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
ENGINE: Final = (
    sys.executable,
    "-P",
    "-c",
    "import sys; from core.cli.main import main; sys.exit(main())",
)
TARGETS: Final = {"bare": 0.6, "fastapi": 4.0}
ROUTES: Final = {
    "completions": {"prompt": "a b c"},
    "chat": {"messages": [{"role": "user", "content": "a b c"}]},
    "messages": {"messages": [{"role": "user", "content": "a b c"}]},
    "responses": {"input": "a b c", "store": False},
}
PATHS: Final = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}


@dataclass
class Server:
    """A serving process."""

    parent: subprocess.Popen[str]
    pid: int
    """Pid of the API process."""
    port: int

    def cpu_s(self) -> float:
        """Return its CPU time in seconds, over all threads."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def ours(args: argparse.Namespace, *flags: str) -> Iterator[Server]:
    """Serve the demo model's tokenizer with the mock engine."""
    rows = args.streams
    blocks = args.streams * (4 + args.tokens // 16)
    sizes = [
        f"--max-num-seqs={rows}",
        f"--num-gpu-blocks-override={blocks}",
        f"--max-model-len={args.tokens + 128}",
    ]
    mock = [
        f"--plugins=+{HERE / 'mock_engine.py'}",
        "--distributed-executor-backend=mock",
        "--fair-rows=0",
    ]
    pace = [f"--mock-steps-per-second={args.pace}"] if args.pace else []
    quiet = ["--disable-uvicorn-access-log", "--log-level=error", "--uvicorn-log-level=error"]
    command = [*ENGINE, "serve", "--port=0", *mock, *pace, *sizes, *quiet, *flags]
    with _started(command) as (process, line):
        yield Server(process, _serving(process.pid), int(line.rpartition(":")[2]))


@contextmanager
def peer(kind: str, args: argparse.Namespace, recorded: Path) -> Iterator[Server]:
    """Serve one of the two scripts in this folder."""
    pause_s = 1 / args.pace if args.pace else 0.0
    command = [sys.executable, str(HERE / f"{kind}.py"), str(pause_s), str(recorded)]
    with _started(command) as (process, line):
        yield Server(process, process.pid, int(line))


@contextmanager
def _started(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=surroundings)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        process.stdout.close()


def _serving(parent: int) -> int:
    """Return the pid of the API process: a child of that name, or the process itself."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return next(
        (int(pid) for pid in children if "api" in Path(f"/proc/{pid}/comm").read_text()), parent
    )


def run_streams(
    server: Server, args: argparse.Namespace, num_tokens: int, *, keep: bool = False
) -> dict[str, Any]:
    """Read all streams; return the results, with the server's CPU time."""
    max_tokens_field = "max_output_tokens" if args.route == "responses" else "max_tokens"
    body = {**ROUTES[args.route], max_tokens_field: num_tokens, "ignore_eos": True, "stream": True}
    given = {"host": "127.0.0.1", "port": server.port, "path": PATHS[args.route], "body": body}
    command = [
        sys.executable,
        str(HERE / "clients.py"),
        json.dumps({**given, "streams": args.streams, "keep": keep}),
    ]
    before_s = server.cpu_s()
    found: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    if found["complete"] != args.streams:
        raise SystemExit(
            f"{args.streams - found['complete']} of {args.streams} streams are not complete"
        )
    return found | {"cpu_s": server.cpu_s() - before_s}


def record(server: Server, args: argparse.Namespace, file: Path) -> None:
    """Record one stream of this engine: head, chunks and texts."""
    recorded = run_streams(server, args, args.tokens, keep=True)["recorded"]
    head, _, body = recorded.partition("\r\n\r\n")
    chunks = [
        each
        for each in re.findall(r"[0-9a-f]+\r\n.*?\r\n(?=[0-9a-f]+\r\n|$)", body, re.DOTALL)
        if each
    ]
    events = [json.loads(found) for found in re.findall(r"data: ({.*})", body)]
    texts = [choice.get("text", "") for event in events for choice in event.get("choices", ())]
    file.write_text(json.dumps({"head": f"{head}\r\n\r\n", "chunks": chunks, "texts": texts}))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--pace", type=float, default=15.0, help="steps a second; 0: no limit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--route", choices=sorted(PATHS), default="completions")
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    costs: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, ours(args) as server:
        recorded = Path(folder) / "recorded.json"
        record(server, args, recorded)
        with ExitStack() as peers:
            sides = {
                "ours": server,
                "bare": peers.enter_context(peer("bare_writer", args, recorded)),
            }
            if args.route == "completions":  # also the route of the FastAPI server
                sides["fastapi"] = peers.enter_context(peer("plain_fastapi", args, recorded))
            for _ in range(args.rounds):
                for name, side in sides.items():
                    costs.setdefault(name, []).append(measure(name, side, args))
    show(costs, args)


def measure(name: str, side: Server, args: argparse.Namespace) -> float:
    """Return microseconds per chunk, without the start of streams."""
    begun = run_streams(side, args, 1) if name == "ours" else {"cpu_s": 0.0, "events": 0}
    found = run_streams(side, args, args.tokens)
    events = found["events"] - begun["events"]
    cost_us = 1e6 * (found["cpu_s"] - begun["cpu_s"]) / events
    joined = args.streams * args.tokens / found["events"]
    print(
        f"{name:>8} {cost_us:6.1f} us a chunk, {joined:.2f} tokens in each; {found['seconds']:.1f} "
        "s",
        flush=True,
    )
    return cost_us


def show(costs: dict[str, list[float]], args: argparse.Namespace) -> None:
    """Print medians and both ratios."""
    middle = {name: statistics.median(found) for name, found in costs.items()}
    print(
        f"{args.streams} streams of {args.tokens} tokens over {PATHS[args.route]}, medians of "
        f"{args.rounds}"
    )
    for name, cost_us in middle.items():
        print(
            f"{name:>8} {cost_us:6.1f} us a chunk: {1e6 / cost_us:9,.0f} chunks a second of a core"
        )
    print(
        f"share of the bare writer: {middle['bare'] / middle['ours']:.2f} (aim: {TARGETS['bare']})"
    )
    if "fastapi" in middle:
        print(
            f"times plain FastAPI: {middle['fastapi'] / middle['ours']:.2f} (aim: "
            f"{TARGETS['fastapi']})"
        )


if __name__ == "__main__":
    main()
