"""Effect of attacks on other clients: greedy streams of the demo model, with and without.

Parts: `attacks` sends each corpus file repeatedly while the streams run. A fake server that rejects
the same requests shows the cost of the sender alone; runs alternate between attack, fake server and
idle. `busy` sends 500 valid requests while four loops use the cores. `soak` mixes valid requests
with the fuzzer and measures the memory of each process.

Run: python benchmarks/neighbours/attacks.py [attacks|busy|soak] [--only NAME ...] [--rounds N]
[--seconds N] [--output-json FILE] [--output-md FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import socketserver
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from streams import QUESTIONS, Run, fill_cache, healthy_streams, memory_mb, total_mb

from tests.system.attacks.corpus_files import Request, load_corpus
from tests.system.attacks.fuzz import RequestGenerator, Tally
from tests.system.attacks.server_under_test import ServerUnderTest, start_server

WORST_GAP = 1.5
WORST_TOTAL = 1.2
WORST_MEMORY = 1.1
"""Maximum ratios."""
SETTLE_S = 30.0
"""Maximum wait in seconds until memory is freed."""
FLAGS = ("--disable-uvicorn-access-log", "--log-level", "error", "--kv-cache-memory-bytes", "128M")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": CITY},
}


@dataclass
class Row:
    """Results of one attack."""

    name: str
    sent: int = 0
    answers: dict[int, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    unchanged: bool = True
    p99_ratio: float = 0.0
    """Ratio to the run with the fake server."""
    total_ratio: float = 0.0
    quiet_p99_ratio: float = 0.0
    """Ratio to the idle run."""
    quiet_total_ratio: float = 0.0
    replaced: bool = False
    memory_mb: float = 0.0
    memory_after_mb: float = 0.0

    @property
    def holds(self) -> bool:
        """Return whether all targets are met."""
        ratios = self.p99_ratio <= WORST_GAP and self.total_ratio <= WORST_TOTAL
        memory_holds = self.memory_after_mb <= WORST_MEMORY * self.memory_mb
        return self.unchanged and not self.replaced and not self.faults and ratios and memory_holds


def send_until_over(
    url: str, name: str, pause_s: float, ready: Any, go: Any, over: Any, found: Any
) -> None:
    """Send the whole attack repeatedly, in a process of its own."""
    server = ServerUnderTest(None, url)
    attack = load_corpus()[name]
    row = Row(name)
    ready.set()
    go.wait()
    while True:
        for request in attack.request:
            for answer in server.send(request):
                row.sent += 1
                row.answers[answer.status] = row.answers.get(answer.status, 0) + 1
                row.faults += answer.faults()[:1]
        for raw in attack.raw:
            row.sent += 1
            server.send_raw(raw)
        if over.wait(pause_s):
            break
    found.put((row.sent, row.answers, row.faults))


class _Rejecting(socketserver.BaseRequestHandler):
    """Server that rejects every request."""

    def handle(self) -> None:
        """Answer one connection."""
        with suppress(OSError):
            received = b""
            while b"\r\n\r\n" not in received:
                part = self.request.recv(1 << 16)
                if not part:
                    return
                received += part
            head, _, begun = received.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
            left = (int(length[1]) if length else 0) - len(begun)
            while left > 0 and (part := self.request.recv(1 << 20)):
                left -= len(part)
            self.request.sendall(
                b"HTTP/1.1 400 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            )


class _FakeServer(socketserver.ThreadingTCPServer):
    request_queue_size = 200
    daemon_threads = True


@contextmanager
def fake_server() -> Iterator[str]:
    """Run the fake server in a process of its own; return its address."""
    listener = _FakeServer(("127.0.0.1", 0), _Rejecting)
    process = multiprocessing.get_context("fork").Process(
        target=listener.serve_forever, daemon=True
    )
    process.start()
    try:
        yield f"http://127.0.0.1:{listener.server_address[1]}"
    finally:
        process.kill()
        process.join()
        listener.server_close()


def run_during_attack(server: ServerUnderTest, row: Row, pause_s: float, url: str) -> Run:
    """Run the streams during an attack on `url`; count the requests."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    go = context.Event()
    over = context.Event()
    found = context.Queue()
    sender = context.Process(
        target=send_until_over, args=(url, row.name, pause_s, ready, go, over, found)
    )
    sender.start()
    ready.wait()
    run = healthy_streams(server, go.set)
    over.set()
    sent, answers, faults = found.get()
    sender.join()
    row.sent += sent
    row.answers = dict(Counter(row.answers) + Counter(answers))
    row.faults += faults
    return run


def measure(server: ServerUnderTest, name: str, rounds: int, pause_s: float, elsewhere: str) -> Row:
    """Compare runs with the attack, with the fake server, and idle."""
    row = Row(name)
    quiet = []
    sent = []
    attacked = []
    engines = server.engine_pids()
    restarts = server.get("/health").json()["restarts"]
    healthy_streams(server)
    row.memory_mb = total_mb(server)
    for _ in range(rounds):
        quiet.append(healthy_streams(server))
        sent.append(run_during_attack(server, Row(name), pause_s, elsewhere))
        attacked.append(run_during_attack(server, row, pause_s, server.url))
    row.unchanged = all(run.tokens == quiet[0].tokens for run in (*quiet, *sent, *attacked))
    row.p99_ratio, row.total_ratio = ratios(attacked, sent)
    row.quiet_p99_ratio, row.quiet_total_ratio = ratios(attacked, quiet)
    row.replaced = (
        not engines <= server.engine_pids() or server.get("/health").json()["restarts"] != restarts
    )
    until = time.monotonic() + SETTLE_S
    while (after := total_mb(server)) > WORST_MEMORY * row.memory_mb and time.monotonic() < until:
        time.sleep(0.5)
    row.memory_after_mb = after
    return row


def ratios(runs: list[Run], others: list[Run]) -> tuple[float, float]:
    """Return the median ratios of the 99th percentiles and of the total times."""
    pairs = list(zip(runs, others, strict=True))
    p99 = statistics.median(run.p99_s() / other.p99_s() for run, other in pairs)
    return p99, statistics.median(run.total_s / other.total_s for run, other in pairs)


def attacks(args: argparse.Namespace) -> tuple[str, Any, bool]:
    """Measure every corpus file that sends requests."""
    chosen = args.only or [
        name for name, attack in load_corpus().items() if attack.request or attack.raw
    ]
    rows = []
    with fake_server() as elsewhere, start_server(*FLAGS) as server:
        fill_cache(server)
        for name in chosen:
            rows.append(measure(server, name, args.rounds, args.pause, elsewhere))
            print(line_of(rows[-1]), flush=True)
    head = (
        "| attack | sent | answers | tokens | p99 | total | p99, to idle | total | processes "
        "| memory, MB | holds |\n"
    )
    table = head + "| --- " * 11 + "|\n" + "\n".join(map(line_of, rows)) + "\n"
    return (
        table,
        [asdict(row) | {"holds": row.holds} for row in rows],
        all(row.holds for row in rows),
    )


def line_of(row: Row) -> str:
    """Return the table line of a row."""
    answers = ", ".join(f"{count} x {status}" for status, count in sorted(row.answers.items()))
    cells = [
        row.name,
        str(row.sent),
        answers,
        "unchanged" if row.unchanged else "CHANGED",
        f"{row.p99_ratio:.2f}",
    ]
    cells += [
        f"{row.total_ratio:.2f}",
        f"{row.quiet_p99_ratio:.2f}",
        f"{row.quiet_total_ratio:.2f}",
    ]
    cells += ["REPLACED" if row.replaced else "unchanged"]
    cells += [f"{row.memory_mb:.0f} -> {row.memory_after_mb:.0f}", "yes" if row.holds else "NO"]
    return f"| {' | '.join(cells)} |"


def valid_requests(count: int, seed: int) -> Iterator[Request]:
    """Return valid requests of all kinds; the first one uses structured outputs."""
    rng = random.Random(seed)
    chat = "/v1/chat/completions"
    completions = "/v1/completions"
    kinds: list[Callable[[], tuple[str, dict[str, Any]]]] = [
        lambda: (
            completions,
            {"prompt": "a", "structured_outputs": {"choice": ["sunny", "cloudy"]}},
        ),
        lambda: (
            completions,
            {"prompt": "a", "structured_outputs": {"regex": f"[a-z]{{1,{rng.randint(2, 9)}}}"}},
        ),
        lambda: (
            completions,
            {"prompt": "a", "structured_outputs": {"json": CITY}, "max_tokens": 24},
        ),
        lambda: (
            completions,
            {"prompt": "a", "structured_outputs": {"grammar": 'root ::= "a" | "b" root'}},
        ),
        lambda: (
            completions,
            {"prompt": [[1, 2, 3], [4, 5]], "n": 2, "seed": rng.randrange(99), "logprobs": 3},
        ),
        lambda: (
            completions,
            {"prompt": "word " * rng.randint(1, 300), "top_p": 0.9, "stop": ["x"]},
        ),
        lambda: (completions, {"prompt": "long " * 3000, "truncate_prompt_tokens": 20}),
        lambda: (
            chat,
            {"messages": [{"role": "user", "content": rng.choice(QUESTIONS)}], "temperature": 0},
        ),
        lambda: (
            chat,
            {
                "messages": [{"role": "user", "content": "Hi"}],
                "response_format": {"type": "json_object"},
            },
        ),
        lambda: (
            chat,
            {"messages": [{"role": "user", "content": "Weather in Rome?"}], "tools": [TOOL]},
        ),
        lambda: (
            chat,
            {
                "messages": [{"role": "user", "content": "Rome?"}],
                "tools": [TOOL],
                "tool_choice": "required",
            },
        ),
        lambda: (
            chat,
            {"messages": [{"role": "user", "content": "Count."}], "stream": True, "logprobs": True},
        ),
        lambda: ("/tokenize", {"prompt": "word " * rng.randint(1, 200)}),
        lambda: ("/detokenize", {"tokens": [rng.randrange(3000) for _ in range(40)]}),
    ]
    for i in range(count):
        path, body = kinds[i % len(kinds)]()
        if path.startswith("/v1"):
            body = {"max_tokens": rng.randint(4, 24), **body}
        yield Request(path=path, body=json.dumps(body), status=[200])


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep the cores busy with other processes."""
    loops = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def _spin() -> None:
    while True:
        pass


def send_all(
    server: ServerUnderTest,
    requests: Iterator[Request],
    clients: int,
    over: threading.Event | None = None,
) -> Tally:
    """Send requests from several clients; return counts. Any status but 200 is a fault."""
    tally = Tally()
    lock = threading.Lock()

    def client() -> None:
        while over is None or not over.is_set():
            with lock:
                request = next(requests, None)
            if request is None:
                return
            (answer,) = server.send(request)
            with lock:
                tally.sent += 1
                tally.by_status[answer.status] = tally.by_status.get(answer.status, 0) + 1
                if answer.status not in request.status or '"error":' in answer.text:
                    tally.faults.append(
                        f"{answer.status} {answer.text[:300]} to {request.path} {request.body}"[
                            :900
                        ]
                    )

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


def busy(args: argparse.Namespace) -> tuple[str, Any, bool]:
    """Send valid requests while other processes use the cores, from the server's start on."""
    with busy_loops(4):
        started = time.monotonic()
        with start_server(*FLAGS, warm=False) as server:
            ready_s = time.monotonic() - started
            tally = send_all(server, valid_requests(args.requests, args.seed), clients=4)
            took_s = time.monotonic() - started - ready_s
    lines = [
        f"{tally.sent} valid requests during four busy loops: {tally.by_status}, "
        f"{len(tally.faults)} refused or failed"
    ]
    lines += [
        f"ready after {ready_s:.1f} s, all answered after {took_s:.1f} s more",
        *tally.faults[:20],
    ]
    return "\n".join(lines) + "\n", asdict(tally), not tally.faults


def soak(args: argparse.Namespace) -> tuple[str, Any, bool]:
    """Mix valid requests with the fuzzer; compare each process's memory at half-time and end."""
    samples: list[tuple[float, dict[int, float]]] = []
    with start_server(*FLAGS) as server:
        fill_cache(server)
        over = threading.Event()
        began = time.monotonic()
        generator = RequestGenerator(server.get("/openapi.json").json(), random.Random(args.seed))
        fuzzed = Tally()
        valid: list[Tally] = []

        def send_fuzz() -> None:
            while not over.is_set():
                request = generator.generate()
                fuzzed.record(request, *server.send(request))

        threads = [threading.Thread(target=send_fuzz)]
        threads.append(
            threading.Thread(
                target=lambda: valid.append(
                    send_all(server, valid_requests(10**9, args.seed), clients=4, over=over)
                )
            )
        )
        for thread in threads:
            thread.start()
        while (now := time.monotonic() - began) < args.seconds:
            samples.append((now, memory_mb(server)))
            time.sleep(min(2.0, args.seconds / 20))
        over.set()
        for thread in threads:
            thread.join()
        names = {pid: server.process_name(pid) for pid in samples[-1][1]}
    lines = []
    growth = {}
    for pid, name in names.items():
        series = [(at, held[pid]) for at, held in samples if pid in held]
        half = [mb for at, mb in series if 0.45 <= at / args.seconds <= 0.55]
        end = [mb for at, mb in series if at / args.seconds >= 0.9]
        if half and end:
            growth[f"{name} ({pid})"] = statistics.mean(end) / statistics.mean(half)
            lines.append(
                f"{name} ({pid}): {series[0][1]:.0f} MB at the start, {statistics.mean(half):.0f} "
                "at half-time, "
                f"{statistics.mean(end):.0f} at the end ({growth[f'{name} ({pid})'] - 1:+.1%})"
            )
    counted = Counter(valid[0].by_status)
    lines.append(
        f"valid: {dict(counted)}, faults {len(valid[0].faults)}; fuzzed: {fuzzed.by_status}"
    )
    lines += [*valid[0].faults[:10], *fuzzed.faults[:10]]
    good = (
        all(ratio <= 1.03 for ratio in growth.values())
        and not valid[0].faults
        and not fuzzed.faults
    )
    return "\n".join(lines) + "\n", {"growth": growth, "samples": samples}, good


def main() -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=("attacks", "busy", "soak"), default="attacks")
    parser.add_argument("--only", nargs="+", help="files of the corpus")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--pause",
        type=float,
        default=0.2,
        help="seconds between two rounds of an attack's requests",
    )
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--output-md", type=Path)
    args = parser.parse_args()
    text, value, good = {"attacks": attacks, "busy": busy, "soak": soak}[args.part](args)
    print(text)
    if args.output_md:
        args.output_md.write_text(text)
    if args.output_json:
        args.output_json.write_text(json.dumps(value, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
