"""Streams of the demo model during attacks, and memory of the server's processes."""

from __future__ import annotations

import json
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.system.attacks.corpus_files import Request
from tests.system.attacks.server_under_test import KEY, TIMEOUT_S, ServerUnderTest

STREAMS = 8
TOKENS = 1024
QUESTIONS = (
    "What is prefix caching?",
    "What is 347 + 285?",
    "What are you?",
    "What is the capital of France?",
    "Say hello.",
    "What is a scheduler?",
    "What is 12 + 30?",
    "Explain paging.",
)


@dataclass
class Run:
    """Results of the streams."""

    tokens: list[list[int]]
    gaps_s: list[float]
    total_s: float

    def p99_s(self) -> float:
        """Return the 99th percentile of inter-token times in seconds."""
        return statistics.quantiles(self.gaps_s, n=100)[98]


def healthy_streams(server: ServerUnderTest, begun: Callable[[], None] = lambda: None) -> Run:
    """Run all streams; `begun` is called when each has its first token.

    Events are parsed after the run, since the client shares the cores.
    """
    received: list[list[tuple[float, bytes]]] = [[] for _ in range(STREAMS)]
    first = threading.Barrier(STREAMS + 1)

    def stream(i: int) -> None:
        messages = [{"role": "user", "content": QUESTIONS[i % len(QUESTIONS)]}]
        body = {"messages": messages, "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
        content = json.dumps(body | {"stream": True, "return_token_ids": True}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
        head += f"Authorization: Bearer {KEY}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        waiting = True
        try:
            with socket.create_connection(
                ("127.0.0.1", server.port), timeout=TIMEOUT_S
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
    """Return the tokens of a stream, and the arrival time of each event."""
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


def memory_mb(server: ServerUnderTest, kind: str = "Rss") -> dict[int, float]:
    """Return the memory of each server process in MB, as RSS or `Pss`."""
    found = {}
    for pid in server.processes():
        with suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            found[pid] = int(text.partition(f"{kind}:")[2].split()[0]) / 1024
    return found


def fill_cache(server: ServerUnderTest) -> None:
    """Let the server touch all of its KV cache, so that it stops growing."""
    rng = random.Random(0)
    held = 0.0
    while (now := total_mb(server)) > held + 4:
        held = now
        for _ in range(8):
            prompts = [[rng.randrange(4, 2000) for _ in range(1900)] for _ in range(8)]
            body = json.dumps({"prompt": prompts, "max_tokens": 1})
            server.send(Request(path="/v1/completions", body=body, status=[200]))


def total_mb(server: ServerUnderTest) -> float:
    """Return the memory of all server processes in MB; shared pages count once."""
    return sum(memory_mb(server, "Pss").values())
