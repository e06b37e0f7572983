"""Streams over HTTP while engines are killed: what clients get, and how long they wait.

Each stream must be the one of an undisturbed server, whole and without an error. The worst gap is
the longest time between two events of a stream, on the client's clock.

Run: python -m tests.system.proofs.engine_kills --engines 2 --kills 20
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx

from tests.system.proofs.test_api_death import Service, serving
from tests.timeouts import TIMEOUT_S

TOKENS: Final = 100
"""Tokens of a stream; the scripted model repeats its prompt, a character each."""


def prompt_of(number: int, index: int) -> str:
    """Return a prompt of `TOKENS` characters that no other stream has."""
    return f"stream {number}, request {index}: ".ljust(TOKENS, "abcdefghij"[number % 10])


@dataclass
class EngineKills:
    """Streams of clients that repeat, and kills of engines meanwhile."""

    service: Service
    num_streams: int
    num_answers: int = 0
    faults: list[str] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    """Seconds from each kill until the next one was possible."""

    async def run(self, kills: int) -> tuple[float, float]:
        """Return the worst gap in seconds without kills, and with them."""
        limits = httpx.Limits(max_connections=self.num_streams + 1)
        async with httpx.AsyncClient(
            base_url=self.service.url, timeout=TIMEOUT_S, limits=limits
        ) as client:
            await self._round(client)  # connections are there, and code is warm
            quiet = [await self._round(client) for _ in range(3)]
            killing = asyncio.ensure_future(self._kill(client, kills))
            disturbed = []
            while not killing.done() and not self.faults:
                disturbed.append(await self._round(client))
            if self.faults:
                killing.cancel()
            else:
                await killing
        return max(quiet), max(disturbed)

    async def _round(self, client: httpx.AsyncClient) -> float:
        """Read a stream of each client; return the worst gap in seconds."""
        gaps = await asyncio.gather(
            *(self._stream(client, number) for number in range(self.num_streams))
        )
        return max(gaps)

    async def _stream(self, client: httpx.AsyncClient, number: int) -> float:
        prompt = prompt_of(number, self.num_answers)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 2 * TOKENS, "stream": True}
        text = ""
        times = []
        try:
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                if answer.status_code != 200:
                    self.faults.append(f"{answer.status_code}: {(await answer.aread()).decode()}")
                    return 0.0
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        event = json.loads(line[6:])
                        text += event["choices"][0]["text"] if "choices" in event else line
                        times.append(time.monotonic())
        except httpx.TransportError as error:
            self.faults.append(f"{prompt!r}: {error!r}")
        if text != prompt:
            self.faults.append(f"got {text!r}; expected {prompt!r}")
        self.num_answers += 1
        return max(after - before for before, after in pairwise(times))

    async def _kill(self, client: httpx.AsyncClient, count: int) -> None:
        """Kill random engines, each when two are ready: a survivor takes its requests."""
        draw = random.Random(count)
        for number in range(count):
            await asyncio.sleep(0.3 * draw.random())
            pids = sorted(await asyncio.to_thread(engines, self.service))
            os.kill(draw.choice(pids), signal.SIGKILL)
            killed_s = time.monotonic()
            while not await self._may_kill(client, number + 1):
                await asyncio.sleep(0.05)
            self.waits_s.append(time.monotonic() - killed_s)

    async def _may_kill(self, client: httpx.AsyncClient, num_restarts: int) -> bool:
        """Return whether all deaths were noticed, and two engines are ready."""
        health: dict[str, Any] = (await client.get("/health")).json()
        each = health["engines"]
        num_ready = [one["status"] for one in each].count("ready")
        return num_ready >= 2 and sum(one["restarts"] for one in each) >= num_restarts


def engines(service: Service) -> set[int]:
    """Return the processes of the engines."""
    return {pid for pid, name in service.below().items() if not name.startswith("engine-")}


@dataclass(frozen=True)
class Found:
    """What a run has found."""

    faults: list[str]
    num_answers: int
    quiet_s: float
    """Worst gap without kills, in seconds."""
    killed_s: float
    """Worst gap with kills, in seconds."""
    waits_s: list[float]
    """Seconds from each kill until the next one was possible."""
    log: str

    @property
    def allowed_s(self) -> float:
        """The largest gap that is good enough, in seconds."""
        return 3 * self.quiet_s + 0.5


def run_kills(
    folder: Path, num_engines: int, num_streams: int, kills: int, *flags: str, rate: float = 20
) -> Found:
    """Serve, kill, and return what was found. `rate`: tokens per second of a stream."""
    scripted = ("--scripted-tokens-per-second", str(rate), "--num-threads", "1")
    sizes = ("-dp", str(num_engines), "--max-num-seqs", str(num_streams))
    restarts = ("--max-restarts", "1000")
    with serving(folder, "scripted:", *sizes, *scripted, *restarts, *flags) as service:
        run = EngineKills(service, num_streams)
        quiet_s, killed_s = asyncio.run(run.run(kills))
    return Found(run.faults, run.num_answers, quiet_s, killed_s, run.waits_s, service.log())


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options: dict[str, tuple[Callable[[str], Any], Any]] = {
        "engines": (int, 2),
        "streams": (int, 64),
        "kills": (int, 20),
        "rate": (float, 20.0),
    }
    for name, (kind, default) in options.items():
        parser.add_argument(f"--{name}", type=kind, default=default)
    parser.add_argument("--log", action="store_true", help="print the server's log")
    args, flags = parser.parse_known_args()
    print(f"load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found = run_kills(
            Path(folder), args.engines, args.streams, args.kills, *flags, rate=args.rate
        )
    waits = sorted(found.waits_s)
    print(
        f"{args.streams} streams over {args.engines} engines, {args.kills} kills: "
        f"{found.num_answers} answers, {len(found.faults)} faults; worst gap {found.quiet_s:.3f} s "
        f"without kills, {found.killed_s:.3f} s with them (at most {found.allowed_s:.3f}); "
        f"from a kill to two ready engines {waits[len(waits) // 2]:.1f} s, at most {waits[-1]:.1f}"
    )
    for fault in found.faults:
        print(fault)
    if args.log:
        print(found.log)
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
