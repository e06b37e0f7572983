"""What several API servers cost: processor time of the broker's hop, and of serving with it.

Parts, both by default:

- `step`: outputs of a step with `--streams` rows, from the broker's client to the clients of 1, 2
  and 4 API servers, and their token statistics back. All in one process, which does nothing else.
- `http`: processor time of the API processes for a token over HTTP, with one API process and with
  two API servers, in turns.

Run: python benchmarks/data_parallel/broker_hop.py [PART ...]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from builtin_plugins.clients.broker.messages import FromApiServer, ToApiServer
from builtin_plugins.clients.broker.open_requests import OpenRequests, Session
from builtin_plugins.clients.broker.sinks import ForwardingSink
from builtin_plugins.clients.process.messages import Outputs
from builtin_plugins.executors.process.channel import Channel
from core.api.execution import StepOutputs
from core.api.telemetry import TokenStats

# --- one step


class Hop:
    """The broker's part of a hop, and channels to some API servers."""

    def __init__(self, num_servers: int, num_streams: int) -> None:
        self._open = OpenRequests()
        self._parents = [Channel.listen(FromApiServer) for _ in range(num_servers)]
        self._servers = [Channel.connect(each.folder, ToApiServer) for each in self._parents]
        self._sinks = [
            ForwardingSink(each.send, lambda health: (b"", "")) for each in self._servers
        ]
        sessions = [Session(each.send) for each in self._parents]
        self._places = {id(session): i for i, session in enumerate(sessions)}
        self._names = [f"cmpl-{number:032x}" for number in range(num_streams)]
        for number, name in enumerate(self._names):
            self._open.open(sessions[number % num_servers], [name])

    def step(self, number: int) -> None:
        """Pass the outputs of a step on, with one token for each stream, and statistics back."""
        outputs = StepOutputs(self._names, [number + i for i in range(len(self._names))])
        for session, part in self._open.split(outputs).items():
            session.send(Outputs(part))
            place = self._places[id(session)]
            received = self._servers[place].receive(10)
            gaps = [0.02 + 1e-6 * number] * len(received.step.request_ids)
            self._sinks[place].tokens(TokenStats(len(gaps), inter_token_s=gaps))
        for parent in self._parents:
            while parent.receive(0) is not None:
                pass

    def close(self) -> None:
        """Close the channels."""
        for each in (*self._servers, *self._parents):
            each.close()


def measure_steps(num_streams: int, rounds: int) -> None:
    """Print the processor time of the hop for a step."""
    for num_servers in (1, 2, 4):
        hop = Hop(num_servers, num_streams)
        times = []
        for _ in range(rounds):
            began_s = time.process_time()
            for number in range(500):
                hop.step(number)
            times.append((time.process_time() - began_s) / 500)
        hop.close()
        step_s = statistics.median(times)
        print(
            f"step: {num_streams} rows to {num_servers} API servers: {1e6 * step_s:.0f} us of a "
            f"step ({1e6 * min(times):.0f} to {1e6 * max(times):.0f}), "
            f"{1e6 * step_s / num_streams:.2f} us of a token"
        )


# --- HTTP


def descendants(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from descendants(int(child))


def name_of(pid: int) -> str:
    """Return the name of a process."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


def cpu_s(pid: int) -> float:
    """Return the processor time of a process and all below it, in seconds."""
    ticks = 0
    for each in descendants(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(num_servers: int, rate: float) -> Iterator[tuple[str, int]]:
    """Serve on a free port; yield the address, and the API process."""
    command = [sys.executable, "-m", "core", "serve", "scripted:", "--port", "0"]
    command += ["-asc", str(num_servers), "--scripted-tokens-per-second", str(rate)]
    command += ["--max-model-len", "1024", "--kv-cache-memory-bytes", "64M"]
    command += ["--log-level", "error", "--disable-uvicorn-access-log"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split()[-1]
        (api,) = (each for each in descendants(process.pid) if name_of(each) == "engine-api")
        yield url, api
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


async def stream(client: httpx.AsyncClient, tokens: int) -> int:
    """Read one stream; return its number of events."""
    fields = {"model": "scripted:", "prompt": "x" * tokens, "max_tokens": tokens, "stream": True}
    async with client.stream("POST", "/v1/completions", json=fields) as answer:
        answer.raise_for_status()
        return [line[:6] async for line in answer.aiter_lines()].count("data: ")


async def time_of_a_token(url: str, api: int, num_streams: int, tokens: int) -> float:
    """Return the processor time of the API processes for a token, in seconds."""
    limits = httpx.Limits(max_connections=num_streams)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        await asyncio.gather(*(client.get("/livez") for _ in range(num_streams)))
        began_s = cpu_s(api)
        await asyncio.gather(*(stream(client, tokens) for _ in range(num_streams)))
        return (cpu_s(api) - began_s) / (num_streams * tokens)


def measure_http(num_streams: int, rounds: int, rate: float) -> None:
    """Print the processor time of a token with one API process and with two API servers."""
    counts = (1, 2)
    found: dict[int, list[float]] = {count: [] for count in counts}
    with serving(1, rate) as one, serving(2, rate) as two:
        for index in range(rounds + 1):
            for count, (url, api) in zip(counts, (one, two), strict=True):
                token_s = asyncio.run(time_of_a_token(url, api, num_streams, 200))
                if index:  # the first one warms up
                    found[count].append(token_s)
    ratios = sorted(after / before for before, after in zip(found[1], found[2], strict=True))
    medians = [1e6 * statistics.median(found[count]) for count in counts]
    print(
        f"http: {num_streams} streams of {rate:g} tokens/s: {medians[0]:.1f} us of a token with "
        f"one API process, {medians[1]:.1f} with two API servers and the broker; median ratio of "
        f"{rounds} pairs {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the named parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens per second of a stream")
    parts: dict[str, Any] = {
        "step": lambda args: measure_steps(args.streams, args.rounds),
        "http": lambda args: measure_http(args.streams, args.rounds, args.rate),
    }
    parser.add_argument("parts", nargs="*", choices=[*parts, []], metavar="PART")
    args = parser.parse_args(arguments)
    for name in args.parts or parts:
        print(f"load {os.getloadavg()[0]:.1f}", flush=True)
        parts[name](args)


if __name__ == "__main__":
    main()
