"""Behaviour with many, slow and disconnecting clients, with the mock engine.

streams: 1,000 concurrent streams; counts complete ones.

busy: fewer streams while four processes use the cores.

slow: 1,000 clients that read a byte per second; memory of the API process.

leave: clients that disconnect in the middle; steps planned between close and abort.

drain: SIGTERM with 200 open streams; counts complete ones and checks new requests.

Run: python benchmarks/serving/many_clients.py [streams busy slow leave drain] [--seconds N]. Exit
status 1 after a loss.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
from clients import Reader, read_all
from front_end import Server, ours

HOST: Final = "127.0.0.1"
PATH: Final = "/v1/completions"
LONG: Final = 1800
"""Number of tokens of long outputs; the demo model's maximum is 2,048."""


def body(num_tokens: int) -> bytes:
    """Return a streamed request for a number of tokens."""
    request = {"prompt": "a b c", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    return json.dumps(request).encode()


@contextlib.contextmanager
def serving(streams: int, tokens: int, pace: float, *flags: str) -> Iterator[Server]:
    """Serve with the mock engine and a number of rows."""
    with ours(argparse.Namespace(streams=streams, tokens=tokens, pace=pace), *flags) as server:
        yield server


def streams(
    args: argparse.Namespace, num: int = 1000, tokens: int = 100, pace: float = 5.0
) -> bool:
    """Open all streams at once; count the complete ones."""
    with serving(num, tokens, pace) as server:
        began_s = time.monotonic()
        cpu_s = server.cpu_s()
        readers = read_all(HOST, server.port, PATH, body(tokens), num)
        took_s = time.monotonic() - began_s
        cpu_s = server.cpu_s() - cpu_s
        health = httpx.get(f"http://{HOST}:{server.port}/health").json()
    whole = sum(reader.is_whole for reader in readers)
    print(
        f"streams: {whole} of {num} whole, {num * tokens} tokens in {took_s:.1f} s "
        f"({tokens / pace:.0f} at the engine's pace)"
    )
    print(
        f"  processor time of the API process: {1e6 * cpu_s / (num * tokens):.1f} us a token; "
        f"restarts: {health['restarts']}"
    )
    return whole == num and health["restarts"] == 0


def busy(args: argparse.Namespace) -> bool:
    """Run 200 streams while four processes use the cores."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        print("during four busy loops, ", end="")
        return streams(args, num=200, tokens=60)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def slow(args: argparse.Namespace, num: int = 1000, tokens: int = LONG) -> bool:
    """Let clients read a byte per second while others are served."""
    with serving(num + 8, tokens, 100.0, "--stream-stall-timeout=60") as server:
        before = _resident_bytes(server.pid)
        request = Reader.asking(HOST, PATH, body(tokens))
        connections = []
        for _ in range(num):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.connect((HOST, server.port))
            connection.sendall(request)
            connections.append(connection)
        until_s = time.monotonic() + args.seconds
        seen = [before]
        waits_s = []
        while time.monotonic() < until_s:
            for connection in connections:
                connection.recv(1)
            began_s = time.monotonic()
            (reader,) = read_all(HOST, server.port, PATH, body(8), 1)
            waits_s.append(time.monotonic() - began_s)
            if not reader.is_whole:
                raise SystemExit("a client was cut off during slow clients")
            seen.append(_resident_bytes(server.pid))
            time.sleep(max(0.0, 1 - (time.monotonic() - began_s)))
        for connection in connections:
            connection.close()
    grown = (max(seen) - before) / num / 1024
    late = (seen[-1] - seen[len(seen) // 2]) / num / 1024
    print(
        f"slow: {num} readers of a byte a second for {args.seconds:g} s: memory +{grown:.0f} KiB a "
        "reader (maximum),"
    )
    print(
        f"  {late:+.1f} KiB in the second half; others were answered in "
        f"{statistics.median(waits_s):.2f} s (median)"
    )
    return grown < 256


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def leave(args: argparse.Namespace, num: int = 200, pace: float = 25.0) -> bool:
    """Close streams one after another; count steps planned until the engine aborts."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal"
        closed_s = []
        draw = random.Random(0)
        with serving(num, LONG, pace, f"--journal={journal}") as server:
            request = Reader.asking(HOST, PATH, body(LONG))
            connections = [socket.create_connection((HOST, server.port)) for _ in range(num)]
            for connection in connections:
                connection.sendall(request)
            for connection in connections:
                connection.recv(4096)
            for connection in connections:
                time.sleep(draw.uniform(0.0, 0.05))
                closed_s.append(time.monotonic())
                connection.close()
            while httpx.get(f"http://{HOST}:{server.port}/health").json()["running"]:
                time.sleep(0.05)
        aborted_s = _times(journal, "abort")
        planned_s = _times(journal, "plan")
    steps = [
        sum(a <= at <= b for at in planned_s) for a, b in zip(closed_s, aborted_s, strict=True)
    ]
    waits_ms = sorted(1e3 * (b - a) for a, b in zip(closed_s, aborted_s, strict=True))
    print(
        f"leave: {num} clients, a step every {1e3 / pace:.0f} ms: {max(steps)} steps planned at "
        "maximum between close and abort,"
    )
    print(
        f"  {statistics.mean(steps):.2f} on average; {statistics.median(waits_ms):.1f} ms "
        f"(median), {waits_ms[-1]:.1f} ms maximum"
    )
    return max(steps) <= 2  # one may be planned already, one during the close


def _times(journal: Path, kind: str) -> list[float]:
    """Return the recorded times of one kind of call."""
    data = journal.read_bytes()
    at = 0
    found = []
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        frame: Any = msgspec.msgpack.decode(data[at + 4 : at + 4 + size])
        at += 4 + size
        if isinstance(frame, list) and frame[0] == kind:
            found.append(frame[1])
    return found


def drain(args: argparse.Namespace, num: int = 200, tokens: int = 100, pace: float = 20.0) -> bool:
    """Send SIGTERM during open streams; send more requests."""
    with serving(num, tokens, pace) as server:
        found: list[Reader] = []
        reading = threading.Thread(
            target=lambda: found.extend(read_all(HOST, server.port, PATH, body(tokens), num))
        )
        reading.start()
        url = f"http://{HOST}:{server.port}"
        while httpx.get(f"{url}/health").json()["open_requests"] < num:
            time.sleep(0.05)
        server.parent.send_signal(signal.SIGTERM)
        refused: list[httpx.Response] = []
        while reading.is_alive() and len(refused) < 20:
            reply = httpx.post(f"{url}{PATH}", json={"prompt": "a", "max_tokens": 1})
            if reply.status_code != 200:
                refused.append(reply)
        reading.join()
        status = server.parent.wait()
    whole = sum(reader.is_whole for reader in found)
    replies = {(reply.status_code, reply.headers.get("retry-after")) for reply in refused}
    print(
        f"drain: {whole} of {num} streams whole after SIGTERM; {len(refused)} new requests were "
        f"replies {replies}; exit {status}"
    )
    return whole == num and replies == {(503, "1")} and status == 0


PARTS: Final = {"streams": streams, "busy": busy, "slow": slow, "leave": leave, "drain": drain}


def main() -> int:
    """Run the named parts, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--seconds", type=float, default=30.0, help="that slow clients read")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    outcomes = [PARTS[name](args) for name in args.names or PARTS]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
