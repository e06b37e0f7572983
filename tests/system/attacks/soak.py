"""Hours of random requests of two clients, with kills: answers, owners, memory and the drain.

Besides random requests, both clients store responses, make them in the background, continue broken
streams, load and unload adapters, and send batches. A client with one key reads, changes and ends
nothing of the other. Each engine process or grammar process that is killed costs no request. Memory
of each process stays flat. At the end nothing runs, and SIGTERM ends the server.

Run: python -m tests.system.attacks.soak [--seconds N] [--seed N] [--kill-every SECONDS]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from tests.system.attacks import belongings
from tests.system.attacks.belongings import OwnerClient
from tests.system.attacks.corpus_files import Request
from tests.system.attacks.fuzz import RequestGenerator, Tally
from tests.system.attacks.server_under_test import (
    KEY,
    TIMEOUT_S,
    Answer,
    HealthyClient,
    ServerUnderTest,
    start_server,
)

OTHER_KEY: Final = "the-key-of-another-client"
KEYS: Final = (KEY, OTHER_KEY)
MARKS: Final = ("sesame", "quince")
"""Words in all texts of each client's scenarios."""
BATCH: Final = 16
"""Requests of each client during one healthy stream or more."""
MAX_IDS: Final = 200
"""Known ids of stored responses; older ones are forgotten."""
SAMPLE_S: Final = 5.0
"""Interval of memory samples in seconds."""
FLAT: Final = 1.03
"""Largest ratio of the memory of the last quarter to that of the second quarter."""
KILLED: Final = ("engine", "engine-grammars")
"""Processes that are killed during requests."""
PROBES: Final = ("/health", "/readyz")
_ID: Final = re.compile(r"\bresp_[0-9a-f]{8,}\b")
_GAUGES: Final = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


@dataclass
class Owners:
    """Which key received which response id first."""

    keys: dict[str, str] = field(default_factory=dict)

    def note(self, request: Request, key: str, answer: Answer) -> list[str]:
        """Record the ids of an answer; return what it shows of the other client."""
        sent = request.path + bytes.fromhex(request.body_hex).decode(errors="replace")
        faults = []
        for name in _ID.findall(answer.text):
            if name not in sent:
                owner = self.keys.setdefault(name, key)
                if owner != key:
                    faults.append(f"{name} of another client is in the answer")
        target = _ID.search(request.path)
        is_other = target is not None and self.keys.get(target[0], key) != key
        if is_other and answer.status not in (404, 405, 503):
            faults.append(f"status {answer.status} for {target and target[0]} of another client")
        while len(self.keys) > MAX_IDS:
            del self.keys[next(iter(self.keys))]
        return faults

    def insert(self, request: Request, rng: random.Random) -> Request:
        """Return the request with a known id where it has a made-up one."""
        if not self.keys:
            return request
        name = rng.choice([*self.keys])
        path = re.sub(r"^/v1/responses/[^/]+", f"/v1/responses/{name}", request.path)
        if path in ("/v1/responses/input_tokens", "/v1/responses/compact"):
            path = request.path
        content = bytes.fromhex(request.body_hex)
        if path == "/v1/responses" and rng.random() < 0.3:
            with suppress(ValueError, RecursionError):
                body = json.loads(content)
                if isinstance(body, dict):
                    content = json.dumps(body | {"previous_response_id": name}).encode()
        return msgspec.structs.replace(request, path=path, body_hex=content.hex())


@dataclass
class Memory:
    """Private memory of the server's long-lived processes over time, in bytes."""

    samples: list[tuple[float, dict[str, int]]] = field(default_factory=list)

    def sample(self, server: ServerUnderTest) -> None:
        """Add a sample; forks of a process with the same name are not counted."""
        found: dict[str, int] = {}
        for pid, parent in server.process_tree().items():
            name = process_kind(server, pid, parent)
            if name and name not in found:
                found[name] = private_bytes(pid)
        self.samples.append((time.monotonic(), found))

    def quarters(self) -> str:
        """Return the median of the first 12 samples and of each quarter, in MiB by process."""
        quarter = max(1, len(self.samples) // 4)
        parts = {"start": self.samples[:12]} | {
            f"quarter {i + 1}": self.samples[i * quarter : (i + 1) * quarter] for i in range(4)
        }
        lines = []
        for label, samples in parts.items():
            names = sorted({name for _, found in samples for name in found})
            sizes = (
                (name, median(found[name] for _, found in samples if name in found) / (1 << 20))
                for name in names
            )
            lines.append(f"{label}: " + ", ".join(f"{name} {size:.1f}" for name, size in sizes))
        return "\n".join(lines)

    def growth(self) -> dict[str, float]:
        """Return the last quarter's median over the second quarter's, by process."""
        quarter = len(self.samples) // 4
        if not quarter:
            return {}
        early = [found for _, found in self.samples[quarter : 2 * quarter]]
        late = [found for _, found in self.samples[-quarter:]]
        names = set().union(*early) & set().union(*late)
        return {
            name: median(found[name] for found in late if name in found)
            / median(found[name] for found in early if name in found)
            for name in sorted(names)
        }

    def table(self, count: int = 12) -> str:
        """Return some samples as lines of MiB."""
        step = max(1, len(self.samples) // count)
        begun_s = self.samples[0][0] if self.samples else 0.0
        return "\n".join(
            f"{at_s - begun_s:7.0f} s  "
            + "  ".join(f"{name} {size >> 20}" for name, size in sorted(found.items()))
            for at_s, found in self.samples[::step]
        )


def process_kind(server: ServerUnderTest, pid: int, parent: int) -> str:
    """Return `parent`, `engine-api`, `engine` or `engine-grammars` (the fork server)."""
    name = server.process_name(pid)
    if pid == server.pids()[0]:
        return "parent"
    if name == "engine-grammars" and server.process_name(parent) == name:
        return ""
    return name if name.startswith("engine-") else "engine"


def private_bytes(pid: int) -> int:
    """Return the memory that a process does not share; 0 if it has exited."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return sum(int(found) << 10 for found in re.findall(r"Private_\w+: +(\d+) kB", text))
    return 0


@dataclass
class Soak:
    """One run against one server."""

    server: ServerUnderTest
    seed: int
    tally: Tally = field(default_factory=Tally)
    owners: Owners = field(default_factory=Owners)
    memory: Memory = field(default_factory=Memory)
    num_kills: int = 0
    scenarios: Counter[str] = field(default_factory=Counter)
    """Complete scenarios of both clients by name."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(
        self,
        seconds: float,
        kill_every_s: float,
        report: Callable[[str], None] = lambda text: None,
        min_requests: int = 0,
    ) -> None:
        """Send batches of both clients until the time is over, and all requests are sent."""
        description = self.server.get("/openapi.json").json()
        generators = [
            RequestGenerator(description, random.Random(self.seed + i)) for i in range(len(KEYS))
        ]
        healthy = HealthyClient(self.server)
        owners = [self._owner_client(i) for i in range(len(KEYS))]
        deadline_s = time.monotonic() + seconds
        next_sample_s = 0.0
        reported = 0
        with self._killing(kill_every_s):
            while time.monotonic() < deadline_s or self.tally.sent < min_requests:
                try:
                    with healthy.streaming():
                        clients = [
                            threading.Thread(target=self._send_batch, args=(generator, key))
                            for generator, key in zip(generators, KEYS, strict=True)
                        ]
                        clients += [threading.Thread(target=each.run_any) for each in owners]
                        for client in clients:
                            client.start()
                        for client in clients:
                            client.join()
                except AssertionError as error:
                    self.tally.faults.append(f"{error} (after {self.tally.sent} requests)")
                for owner in owners:
                    self.tally.faults += owner.faults
                    owner.faults.clear()
                if self.server.get("/livez").status_code != 200:
                    self.tally.faults.append(f"/livez fails after {self.tally.sent} requests")
                if time.monotonic() > next_sample_s:
                    next_sample_s = time.monotonic() + SAMPLE_S
                    self.memory.sample(self.server)
                for fault in self.tally.faults[reported:]:
                    report(fault)
                reported = len(self.tally.faults)
        for owner in owners:
            owner.close()
            self.scenarios += owner.done
        self._check_idle()
        for fault in self.tally.faults[reported:]:
            report(fault)

    def grown(self, bound: float = FLAT) -> dict[str, float]:
        """Return the growth of what grew more than the bound; killed processes began again."""
        return {
            name: ratio
            for name, ratio in self.memory.growth().items()
            if ratio > bound and not (self.num_kills and name in KILLED)
        }

    def _owner_client(self, i: int) -> OwnerClient:
        def note(method: str, path: str, answer: Answer) -> None:
            request = Request(path=path, method=method, status=[])
            with self._lock:
                self.tally.faults += self.owners.note(request, KEYS[i], answer)

        return OwnerClient(
            *(self.server.url, KEYS[i], MARKS[i], KEYS[1 - i], MARKS[1 - i]),
            rng=random.Random(self.seed + 10 + i),
            note=note,
        )

    def _send_batch(self, generator: RequestGenerator, key: str) -> None:
        for _ in range(BATCH):
            with self._lock:
                request = self.owners.insert(generator.generate(), generator.rng)
            headers = {**request.headers, "authorization": f"Bearer {key}"}
            request = msgspec.structs.replace(request, headers=headers, authenticated=False)
            (answer,) = self.server.send(request)
            if request.path in PROBES and answer.status == 503:
                continue  # its body is the state of a restart, not an error
            with self._lock:
                self.tally.record(request, answer)
                self.tally.faults += [
                    f"{fault}\n    {request.http_method()} {request.path}"
                    for fault in self.owners.note(request, key, answer)
                ]

    @contextmanager
    def _killing(self, every_s: float) -> Iterator[None]:
        """Kill a random process again and again during the block; 0: none."""
        done = threading.Event()

        def kill() -> None:
            rng = random.Random(self.seed)
            while not done.wait(every_s):
                name = rng.choice(KILLED)
                pids = [
                    pid
                    for pid, parent in self.server.process_tree().items()
                    if pid != self.server.pids()[0]
                    and (process_kind(self.server, pid, parent) or "engine-grammars") == name
                ]
                with suppress(ProcessLookupError, IndexError):
                    os.kill(rng.choice(pids), signal.SIGKILL)
                    self.num_kills += 1

        thread = threading.Thread(target=kill)
        if every_s:
            thread.start()
        try:
            yield
        finally:
            done.set()
            if every_s:
                thread.join()

    def _check_idle(self) -> None:
        """Wait until the gauges are 0; what stays is a fault."""
        until_s = time.monotonic() + TIMEOUT_S
        while left := _nonzero(self.server.get("/metrics").text):
            if time.monotonic() > until_s:
                self.tally.faults.append(f"without requests: {left}")
                return
            time.sleep(0.1)


def _nonzero(metrics: str) -> dict[str, Any]:
    found = {}
    for gauge in _GAUGES:
        for value in re.findall(rf"^engine_{gauge}{{[^}}]*}} (\S+)$", metrics, re.MULTILINE):
            if float(value):
                found[gauge] = float(value)
    return found


def soak(
    seconds: float,
    seed: int = 1,
    kill_every_s: float = 0.0,
    report: Callable[[str], None] = lambda text: None,
    min_requests: int = 0,
) -> Soak:
    """Run against a new server; it must end with status 0."""
    keys = ("--api-key", KEY, "--api-key", OTHER_KEY)
    # A small KV cache and response store: their memory counts once it was written to.
    small = ("--kv-cache-memory-bytes", "32M", "--responses-store-bytes", str(1 << 20))
    quiet = ("--disable-uvicorn-access-log", "--log-level", "error")
    with start_server(*keys, *small, *quiet, *belongings.FLAGS) as server:
        run = Soak(server, seed)
        run.run(seconds, kill_every_s, report, min_requests)
    return run


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill-every", type=float, default=0.0, metavar="SECONDS")
    args = parser.parse_args()
    run = soak(args.seconds, args.seed, args.kill_every, partial(print, flush=True))
    print(run.memory.table())
    print(run.memory.quarters())
    growth = run.memory.growth()
    print(f"scenarios: {dict(sorted(run.scenarios.items()))}")
    print(
        f"{run.tally.sent} requests of seed {args.seed}, {run.num_kills} kills; answers by status: "
        f"{dict(sorted(run.tally.by_status.items()))}; memory of the last quarter over the second: "
        + ", ".join(f"{name} {ratio:.3f}" for name, ratio in growth.items())
    )
    return 1 if run.grown() or run.tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
