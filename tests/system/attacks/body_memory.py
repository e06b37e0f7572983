"""Memory of the API process while all bytes that may be in flight arrive at once, by shape of body.

Each request sends its body but the last byte; then all send that byte, so that the server has
everything at once. Peak memory is the kernel's (`VmHWM`, reset before each case), without what the
process had when it was idle.

Run: python -m tests.system.attacks.body_memory [NAME ...]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.system.attacks.server_under_test import KEY, TIMEOUT_S, ServerUnderTest, start_server

MIB: Final = 2**20
LIMIT_BYTES: Final = 64 * MIB
"""Bytes in flight that the server allows."""
MAX_REQUEST_BYTES: Final = 8 * MIB
MAX_FACTOR: Final = 3.0
"""Largest growth of the API process, in multiples of the bytes in flight."""
MAX_OPEN: Final = 900
"""Largest number of connections of a case."""


@dataclass(frozen=True)
class Case:
    """Requests with equal bodies to one route."""

    name: str
    path: str
    body: bytes


def cases() -> Iterator[Case]:
    """Yield large bodies, and such with many values for their size."""
    text = "ab c" * (MAX_REQUEST_BYTES // 4 - 1024)
    turn = {"role": "user", "content": "b"}
    part = {"type": "text", "text": "b"}
    item = {"type": "message", "role": "user", "content": "b"}
    chat = "/v1/chat/completions"
    tool = {"name": "f", "parameters": {"properties": {f"k{i}": {} for i in range(8000)}}}
    bodies: list[tuple[str, str, dict[str, Any]]] = [
        ("one text", chat, {"messages": [{"role": "user", "content": text}]}),
        ("one text", "/v1/completions", {"prompt": text}),
        ("one text", "/v1/responses", {"input": text}),
        ("one text", "/v1/messages", {"messages": [{"role": "user", "content": text}]}),
        ("one text", "/tokenize", {"prompt": text}),
        ("turns", chat, {"messages": [turn] * 10_000}),
        ("parts", chat, {"messages": [{"role": "user", "content": [part] * 10_000}]}),
        ("turns", "/v1/messages", {"messages": [turn] * 10_000}),
        ("items", "/v1/responses", {"input": [item] * 10_000}),
        ("tools", chat, {"messages": [turn], "tools": [{"type": "function", "function": tool}]}),
        ("prompts", "/v1/completions", {"prompt": ["b"] * 2_000}),
        ("token ids", "/v1/completions", {"prompt": [65] * 16_000}),
        ("numbers", chat, {"messages": [turn], "unknown_field": [0.5] * 100_000}),
        ("lists", chat, {"messages": [turn], "unknown_field": [[]] * 30_000}),
        ("objects", chat, {"messages": [turn], "metadata": [{"a": {}}] * 15_000}),
    ]
    for shape, path, fields in bodies:
        stated = {"model": "demo", "max_tokens": 1, **fields}
        yield Case(f"{shape} to {path}", path, json.dumps(stated, separators=(",", ":")).encode())


async def _send(port: int, case: Case, may_end: asyncio.Event, sent: asyncio.Semaphore) -> str:
    """Send a request, its last byte once `may_end` is set; return the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST {case.path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(case.body)}\r\n"
        "connection: close\r\n\r\n"
    )
    try:
        writer.write(head.encode())
        for start in range(0, len(case.body) - 1, MIB):
            writer.write(case.body[start : min(start + MIB, len(case.body) - 1)])
            await writer.drain()
        sent.release()
        await may_end.wait()
        writer.write(case.body[-1:])
        return (await reader.readline()).decode().partition(" ")[2][:3]
    except ConnectionError:
        return "cut"
    finally:
        writer.close()


async def _send_all(port: int, case: Case, count: int) -> Counter[str]:
    may_end = asyncio.Event()
    sent = asyncio.Semaphore(0)
    tasks = [asyncio.ensure_future(_send(port, case, may_end, sent)) for _ in range(count)]
    for _ in tasks:
        await sent.acquire()
    may_end.set()
    return Counter(await asyncio.gather(*tasks))


def memory_of(pid: int, name: str) -> int:
    """Return `VmRSS` or `VmHWM` of a process in bytes."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found is not None
    return int(found[1]) << 10


def api_process(server: ServerUnderTest) -> int:
    """Return the process that reads requests."""
    return next(pid for pid in server.pids() if server.process_name(pid) == "engine-api")


@dataclass(frozen=True)
class Peak:
    """What a case did."""

    case: Case
    count: int
    in_flight: int
    """Bytes of all bodies."""
    growth: int
    """Peak memory of the API process, without that of the idle one, in bytes."""
    statuses: Counter[str]

    @property
    def factor(self) -> float:
        """Growth in multiples of the limit of bytes in flight."""
        return self.growth / LIMIT_BYTES

    def __str__(self) -> str:
        return (
            f"{self.case.name}: {self.count} x {len(self.case.body)} bytes, "
            f"+{self.growth / MIB:.0f} MiB, {self.factor:.2f}, {dict(self.statuses)}"
        )


def measure(server: ServerUnderTest, case: Case, idle_bytes: int) -> Peak:
    """Send a case, and return the peak without the memory of an idle server."""
    count = min(LIMIT_BYTES // len(case.body), MAX_OPEN)
    pid = api_process(server)
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets VmHWM
    statuses = asyncio.run(asyncio.wait_for(_send_all(server.port, case, count), TIMEOUT_S))
    growth = memory_of(pid, "VmHWM") - idle_bytes
    return Peak(case, count, count * len(case.body), growth, statuses)


FLAGS: Final = (
    *("--max-bytes-in-flight", str(LIMIT_BYTES), "--max-client-bytes-in-flight", str(LIMIT_BYTES)),
    *("--max-request-bytes", str(MAX_REQUEST_BYTES), "--disable-uvicorn-access-log"),
    *("--log-level", "error"),
)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="parts of the names of cases; default: all")
    args = parser.parse_args()
    worst = 0.0
    with start_server(*FLAGS) as server:
        idle_bytes = memory_of(api_process(server), "VmRSS")
        for case in cases():
            if not args.names or any(name in case.name for name in args.names):
                peak = measure(server, case, idle_bytes)
                print(peak, flush=True)
                worst = max(worst, peak.factor)
    return 0 if worst <= MAX_FACTOR else 1


if __name__ == "__main__":
    sys.exit(main())
