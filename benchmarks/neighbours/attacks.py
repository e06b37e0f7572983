"""What attacks cost those beside them: healthy greedy streams of the demo model, with an attack and
without, in turns.

Parts: `attacks` sends each file of the corpus again and again while the streams run. The same
requests sent to a stand-in, which reads them and says no, show what their sender alone costs on the
same cores; a run is compared with that and with a quiet one, all three in turns; `busy` sends 500
valid requests of all kinds while four loops want the cores; `soak` mixes valid load with the fuzzer
and looks at the memory of each process. Run: python benchmarks/neighbours/attacks.py
[attacks|busy|soak] [--only NAME ...] [--rounds N] [--seconds N]
     [--output-json FILE] [--output-md FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import socket
import socketserver
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "attacks"))

from attacked import KEY, PATIENCE_S, Attacked, attacked
from corpus_files import Request, load_corpus
from fuzz import Made, Tally

STREAMS = 8
TOKENS = 1024
WORST_GAP = 1.5
WORST_TOTAL = 1.2
WORST_MEMORY = 1.1
"""What must hold of the ratios."""
SETTLE_S = 30.0
"""Longest wait for memory to come back."""
QUESTIONS = (
    "What is prefix caching?",
    "What is 347 + 285?",
    "Who are you?",
    "What is the capital of France?",
    "Say hello.",
    "What is a scheduler?",
    "What is 12 + 30?",
    "Tell me about paging.",
)
FLAGS = ("--disable-uvicorn-access-log", "--log-level", "error", "--kv-cache-memory-bytes", "128M")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": CITY},
}


@dataclass
class Run:
    """What the healthy streams saw."""

    tokens: list[list[int]]
    gaps_s: list[float]
    total_s: float

    def p99_s(self) -> float:
        """Return the inter-token time that one in a hundred exceeds."""
        return statistics.quantiles(self.gaps_s, n=100)[98]


@dataclass
class Row:
    """One attack."""

    name: str
    sent: int = 0
    answers: dict[int, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    unchanged: bool = True
    p99_ratio: float = 0.0
    """To the run beside which the same was sent to the stand-in."""
    total_ratio: float = 0.0
    quiet_p99_ratio: float = 0.0
    """To the run beside which nothing was sent."""
    quiet_total_ratio: float = 0.0
    replaced: bool = False
    memory_mb: float = 0.0
    memory_after_mb: float = 0.0

    @property
    def holds(self) -> bool:
        """Say whether it is as it must be."""
        ratios = self.p99_ratio <= WORST_GAP and self.total_ratio <= WORST_TOTAL
        kept = self.memory_after_mb <= WORST_MEMORY * self.memory_mb
        return self.unchanged and not self.replaced and not self.faults and ratios and kept


def healthy_streams(server: Attacked, begun: Callable[[], None] = lambda: None) -> Run:
    """Run all streams at once; `begun` is called when each has its first token.

    What comes is put aside and read when all is over: the client shares the cores with what it
    measures.
    """
    received: list[list[tuple[float, bytes]]] = [[] for _ in range(STREAMS)]
    first = threading.Barrier(STREAMS + 1)

    def stream(i: int) -> None:
        messages = [{"role": "user", "content": QUESTIONS[i % len(QUESTIONS)]}]
        body = {"messages": messages, "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
        content = json.dumps(body | {"stream": True, "return_token_ids": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        waiting = True
        try:
            with socket.create_connection(
                ("127.0.0.1", server.port), timeout=PATIENCE_S
            ) as connection:
                connection.sendall(head.encode() + content)
                while chunk := connection.recv(1 << 16):
                    received[i].append((time.perf_counter(), chunk))
                    if waiting and b"token_ids" in chunk:
                        waiting = False
                        first.wait()
        finally:
            if waiting:
                first.abort()

    threads = [threading.Thread(target=stream, args=(i,)) for i in range(STREAMS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    with suppress(threading.BrokenBarrierError):
        first.wait()
    begun()
    for thread in threads:
        thread.join()
    total_s = time.perf_counter() - began
    read = [_read_stream(chunks) for chunks in received]
    gaps = [late - early for _, times in read for early, late in pairwise(times)]
    return Run([tokens for tokens, _ in read], gaps, total_s)


def _read_stream(chunks: list[tuple[float, bytes]]) -> tuple[list[int], list[float]]:
    """Return the tokens of a stream, and when each event with some came."""
    tokens: list[int] = []
    times: list[float] = []
    begun = b""
    for at, chunk in chunks:
        *lines, begun = (begun + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                found = [
                    t
                    for c in json.loads(line[6:]).get("choices", ())
                    for t in c.get("token_ids") or ()
                ]
                tokens += found
                times += [at] if found else []
    return tokens, times


def memory_mb(server: Attacked, kind: str = "Rss") -> dict[int, float]:
    """Return what each process of the server holds; as `Pss` its part of what it shares with any
    other.
    """
    found = {}
    for pid in server.processes():
        with suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            found[pid] = int(text.partition(f"{kind}:")[2].split()[0]) / 1024
    return found


def fill_cache(server: Attacked) -> None:
    """Have the server touch all of its KV cache, which grows until then."""
    rng = random.Random(0)
    held = 0.0
    while (now := total_mb(server)) > held + 4:
        held = now
        for _ in range(8):
            prompts = [[rng.randrange(4, 2000) for _ in range(1900)] for _ in range(8)]
            body = json.dumps({"prompt": prompts, "max_tokens": 1})
            server.ask(Request(path="/v1/completions", body=body, status=[200]))


def total_mb(server: Attacked) -> float:
    """Return what all processes of the server hold; shared pages count once."""
    return sum(memory_mb(server, "Pss").values())


def send_until_over(
    url: str, name: str, pause_s: float, ready: Any, go: Any, over: Any, found: Any
) -> None:
    """Send everything an attack has, in full size, again and again: in a process of its own, as any
    client is.
    """
    server = Attacked(None, url)
    attack = load_corpus()[name]
    row = Row(name)
    ready.set()
    go.wait()
    while True:
        for request in attack.request:
            for answer in server.ask(request):
                row.sent += 1
                row.answers[answer.status] = row.answers.get(answer.status, 0) + 1
                row.faults += answer.faults()[:1]
        for raw in attack.raw:
            row.sent += 1
            server.send(raw)
        if over.wait(pause_s):
            break
    found.put((row.sent, row.answers, row.faults))


class _No(socketserver.BaseRequestHandler):
    """Reads a request and says no."""

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


class _StandIn(socketserver.ThreadingTCPServer):
    request_queue_size = 200
    daemon_threads = True


@contextmanager
def stand_in() -> Iterator[str]:
    """Run a server that costs next to nothing, in a process of its own; return where it listens."""
    listener = _StandIn(("127.0.0.1", 0), _No)
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


def beside_attack(server: Attacked, row: Row, pause_s: float, url: str) -> Run:
    """Run the streams beside an attack on `url`; count what it sent."""
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


def measure(server: Attacked, name: str, rounds: int, pause_s: float, elsewhere: str) -> Row:
    """Compare runs with an attack, with the same sent elsewhere, and without, in turns."""
    row = Row(name)
    quiet = []
    sent = []
    beside = []
    engines = server.engines()
    restarts = server.get("/health").json()["restarts"]
    healthy_streams(server)
    row.memory_mb = total_mb(server)
    for _ in range(rounds):
        quiet.append(healthy_streams(server))
        sent.append(beside_attack(server, Row(name), pause_s, elsewhere))
        beside.append(beside_attack(server, row, pause_s, server.url))
    row.unchanged = all(run.tokens == quiet[0].tokens for run in (*quiet, *sent, *beside))
    row.p99_ratio, row.total_ratio = ratios(beside, sent)
    row.quiet_p99_ratio, row.quiet_total_ratio = ratios(beside, quiet)
    row.replaced = (
        not engines <= server.engines() or server.get("/health").json()["restarts"] != restarts
    )
    until = time.monotonic() + SETTLE_S
    while (after := total_mb(server)) > WORST_MEMORY * row.memory_mb and time.monotonic() < until:
        time.sleep(0.5)
    row.memory_after_mb = after
    return row


def ratios(runs: list[Run], others: list[Run]) -> tuple[float, float]:
    """Return the medians of how the 99th percentiles and the total times compare."""
    pairs = list(zip(runs, others, strict=True))
    p99 = statistics.median(run.p99_s() / other.p99_s() for run, other in pairs)
    return p99, statistics.median(run.total_s / other.total_s for run, other in pairs)


def attacks(args: argparse.Namespace) -> tuple[str, Any, bool]:
    """Measure every file of the corpus that sends something."""
    chosen = args.only or [
        name for name, attack in load_corpus().items() if attack.request or attack.raw
    ]
    rows = []
    with stand_in() as elsewhere, attacked(*FLAGS) as server:
        fill_cache(server)
        for name in chosen:
            rows.append(measure(server, name, args.rounds, args.pause, elsewhere))
            print(line_of(rows[-1]), flush=True)
    head = "| attack | sent | answers | tokens | p99 | total | p99, to quiet | total | processes | memory, MB | holds |\n"
    table = head + "| --- " * 11 + "|\n" + "\n".join(map(line_of, rows)) + "\n"
    return (
        table,
        [asdict(row) | {"holds": row.holds} for row in rows],
        all(row.holds for row in rows),
    )


def line_of(row: Row) -> str:
    """Return the row as the table has it."""
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
    cells += ["REPLACED" if row.replaced else "kept"]
    cells += [f"{row.memory_mb:.0f} -> {row.memory_after_mb:.0f}", "yes" if row.holds else "NO"]
    return f"| {' | '.join(cells)} |"


def valid_requests(count: int, seed: int) -> Iterator[Request]:
    """Return valid requests of all kinds; the first is constrained."""
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
    """Keep the cores busy with processes of our own."""
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


def ask_all(
    server: Attacked, requests: Iterator[Request], clients: int, over: threading.Event | None = None
) -> Tally:
    """Send requests by several clients; return what came of it. What is not 200 counts as a fault."""
    tally = Tally()
    lock = threading.Lock()

    def client() -> None:
        while over is None or not over.is_set():
            with lock:
                request = next(requests, None)
            if request is None:
                return
            (answer,) = server.ask(request)
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
    """Send valid requests while others want the cores, from the server's first moment on."""
    with busy_loops(4):
        started = time.monotonic()
        with attacked(*FLAGS, warm=False) as server:
            ready_s = time.monotonic() - started
            tally = ask_all(server, valid_requests(args.requests, args.seed), clients=4)
            took_s = time.monotonic() - started - ready_s
    lines = [
        f"{tally.sent} valid requests beside four busy loops: {tally.by_status}, "
        f"{len(tally.faults)} refused or failed"
    ]
    lines += [
        f"ready after {ready_s:.1f} s, all answered after {took_s:.1f} s more",
        *tally.faults[:20],
    ]
    return "\n".join(lines) + "\n", asdict(tally), not tally.faults


def soak(args: argparse.Namespace) -> tuple[str, Any, bool]:
    """Mix valid load with the fuzzer; compare each process' memory at the end with that at
    half-time.
    """
    samples: list[tuple[float, dict[int, float]]] = []
    with attacked(*FLAGS) as server:
        fill_cache(server)
        over = threading.Event()
        began = time.monotonic()
        made = Made(server.get("/openapi.json").json(), random.Random(args.seed))
        fuzzed = Tally()
        valid: list[Tally] = []

        def send_fuzz() -> None:
            while not over.is_set():
                request = made.request()
                fuzzed.take(request, *server.ask(request))

        threads = [threading.Thread(target=send_fuzz)]
        threads.append(
            threading.Thread(
                target=lambda: valid.append(
                    ask_all(server, valid_requests(10**9, args.seed), clients=4, over=over)
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
        names = {pid: server.name_of(pid) for pid in samples[-1][1]}
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
