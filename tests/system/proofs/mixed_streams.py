"""A server with every feature, sixteen kinds of streams, and kills of its processes meanwhile.

A client with a cut stream sends its request again until it has a whole answer. Every answer must
be that of an undisturbed server; the only 5xx is 503 with Retry-After. Streams are cut by the
death of the API process or of the parent, and by nothing else.

Run: python -m tests.system.proofs.mixed_streams --victim engine --kills 40
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from builtin_plugins.model_sources import demo

TIMEOUT_S: Final = 600.0
COMMAND: Final = "import sys; from core.cli.main import main; sys.exit(main())"
LOADER: Final = "adapter_loader"
"""The engine while it reads an adapter: the loader is a thread of it."""
VICTIMS: Final = ("engine", LOADER, "grammar", "fork_server", "api", "parent")
GRAMMARS: Final = ("grammar", "fork_server")
"""Victims that only constrained streams need."""
CUTS: Final = ("api", "parent")
"""Victims with deaths that cut streams."""
MAX_FAULTS: Final = 20
"""Faults after which a run ends."""
ADAPTERS: Final = ("capitals", "pirate")
DEMO_ADAPTERS: Final = Path(demo.__file__).parent / "adapters"
IN_OPEN: Final = 0x20
PERSON: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 3, "maxItems": 9},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
WEATHER: Final = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
ENDS: Final = ("message_stop", "response.completed", "response.incomplete")
"""Last events of the streams that have no `[DONE]`."""
_VOLATILE: Final = re.compile(
    r'"(?:id|item_id|response_id|call_id|tool_call_id|created|created_at|completed_at|'
    r'system_fingerprint)": ?(?:"[^"]*"|[0-9.]+|null),? ?'
)


def flags(folder: Path, victim: str) -> list[str]:
    """Return the flags of a server with every feature; `folder` is its disk tier."""
    # With one slot two adapters take turns, and each turn reads an adapter.
    slots = ("--max-loras", "1", "--max-cpu-loras", "1") if victim == LOADER else ()
    tiers = [
        {"kv_connector": "offload", "kv_connector_extra_config": {"num_cpu_blocks": 64}},
        {"kv_connector": "disk", "kv_connector_extra_config": {"folder": str(folder)}},
    ]
    transfer = {"kv_connector": "multi", "kv_connector_extra_config": {"connectors": tiers}}
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    return [
        *("demo:", "--served-model-name", "demo", "--dtype", "float32", "--num-threads", "1"),
        *("--max-model-len", "1024", "--kv-cache-memory-bytes", "24M"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--reasoning-parser", "think", *(slots or ("--max-loras", "2"))),
        *("--lora-modules", *(f"{name}=demo:{name}" for name in ADAPTERS)),
        *("--speculative-config", json.dumps(ngram)),
        *("--kv-transfer-config", json.dumps(transfer)),
        *("--disable-uvicorn-access-log", "--log-level", "error", "--max-restarts", "1000"),
    ]


def requests() -> list[tuple[str, dict[str, Any]]]:
    """Return the path and body of each stream."""
    ask = [{"role": "user", "content": "What is prefix caching, and what is 12 + 30?"}]
    count = [{"role": "user", "content": "Say one two three four one two three four again."}]
    seeded = {"temperature": 0.8, "top_p": 0.95}
    long = {"ignore_eos": True}
    chat = "/v1/chat/completions"
    plain = "/v1/completions"
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    return [
        (plain, {"prompt": "one two three one two", "max_tokens": 120, "temperature": 0, **long}),
        (plain, {"prompt": "Prefix caching is", "max_tokens": 90, "seed": 11, **seeded, **long}),
        (plain, {"prompt": "A " * 150, "max_tokens": 60, "logprobs": 3, "temperature": 0, **long}),
        (plain, {"prompt": "x", "max_tokens": 80, "n": 2, "seed": 4, **seeded, **long}),
        (
            plain,
            {
                "prompt": "code ",
                "max_tokens": 120,
                "seed": 5,
                **seeded,
                "structured_outputs": {"regex": r"([a-z]{3}[0-9]{2} ){16}"},
            },
        ),
        (chat, {"messages": ask, "max_tokens": 90, "temperature": 0, **long}),
        (
            chat,
            {
                "messages": count,
                "max_tokens": 70,
                "seed": 6,
                **seeded,
                "logprobs": True,
                "top_logprobs": 2,
                **long,
            },
        ),
        (chat, {"messages": ask, "max_tokens": 60, "n": 2, "seed": 7, **seeded, **long}),
        (chat, {"messages": ask, "max_tokens": 150, "seed": 8, **seeded, "response_format": form}),
        (
            chat,
            {
                "messages": ask,
                "max_tokens": 150,
                "seed": 9,
                **seeded,
                "tools": [WEATHER],
                "tool_choice": "required",
            },
        ),
        (
            chat,
            {"messages": ask, "max_tokens": 90, "temperature": 0, "tools": [WEATHER], **long},
        ),
        (chat, {"model": "pirate", "messages": ask, "max_tokens": 90, "temperature": 0, **long}),
        (
            chat,
            {
                "model": "capitals",
                "messages": count,
                "max_tokens": 120,
                "seed": 10,
                **seeded,
                "response_format": form,
                "repetition_penalty": 1.1,
            },
        ),
        ("/v1/responses", {"input": ask[0]["content"], "max_output_tokens": 80, "temperature": 0}),
        (
            "/v1/responses",
            {
                "input": "Give me a person.",
                "max_output_tokens": 150,
                "temperature": 0,
                "text": {"format": {"type": "json_schema", "name": "p", "schema": PERSON}},
            },
        ),
        (
            "/v1/messages",
            {
                "messages": ask,
                "max_tokens": 120,
                "temperature": 0,
                "tools": [
                    {
                        "name": "get_weather",
                        "input_schema": WEATHER["function"]["parameters"],  # type: ignore[index]
                    }
                ],
                "tool_choice": {"type": "any"},
            },
        ),
    ]


def is_constrained(body: dict[str, Any]) -> bool:
    """Return whether a grammar holds an answer."""
    is_called = body.get("tool_choice") in ("required", {"type": "any"})
    return is_called or any(name in body for name in ("structured_outputs", "response_format"))


@dataclass
class Server:
    """A server process and what it started."""

    arguments: list[str]
    log: Path
    port: int
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Its address, which is the same after a restart."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it serves."""
        command = [sys.executable, "-P", "-c", COMMAND, "serve", *self.arguments]
        command += ["--port", str(self.port)]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        if self.process.stdout is None or not self.process.stdout.readline().startswith("Serving"):
            raise RuntimeError(f"the server did not start:\n{self.log.read_text()[-2000:]}")

    def processes(self) -> dict[str, list[int]]:
        """Return the pids of each kind of process."""
        if self.process is None:
            raise RuntimeError("the server has not started")
        names: dict[int, str] = {}
        parents: dict[int, int] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                head, _, tail = stat.read_text().rpartition(")")
                state, parent = tail.split()[:2]
                if state != "Z":
                    pid = int(stat.parent.name)
                    names[pid] = head.partition("(")[2]
                    parents[pid] = int(parent)
        found: dict[str, list[int]] = {name: [] for name in VICTIMS}
        found["parent"] = [self.process.pid]
        tree = [self.process.pid]
        for pid in tree:
            for child in [child for child, parent in parents.items() if parent == pid]:
                tree.append(child)
                if names[child] == "engine-grammars":
                    is_fork = names.get(pid) == "engine-grammars"
                    found["grammar" if is_fork else "fork_server"].append(child)
                elif names[child] == "engine-api":
                    found["api"].append(child)
                else:
                    found["engine"].append(child)
        return found

    def stop(self) -> None:
        """End it; it must exit with 0."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(TIMEOUT_S)
        if status != 0:
            raise AssertionError(f"exit status {status}:\n{self.log.read_text()[-2000:]}")

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=TIMEOUT_S).text
        found = re.findall(rf"^engine_{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))


@contextmanager
def serving(folder: Path, victim: str = "") -> Iterator[Server]:
    """Serve with every feature."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = Server(flags(folder / "disk", victim), folder / "log", port)
    try:
        server.start()
        yield server
        server.stop()
    finally:
        if server.process is not None:
            server.process.kill()
            server.process.wait()
            if server.process.stdout is not None:
                server.process.stdout.close()


def wait_for_adapter() -> None:
    """Wait until a process opens the weights of an adapter, by Linux's inotify."""
    libc = ctypes.CDLL(None, use_errno=True)
    events = libc.inotify_init1(os.O_CLOEXEC)
    try:
        for path in DEMO_ADAPTERS.glob("*/adapter_model.safetensors"):
            libc.inotify_add_watch(events, os.fsencode(path), IN_OPEN)
        if not select.select([events], [], [], TIMEOUT_S)[0]:
            raise AssertionError("no adapter was read")
    finally:
        os.close(events)


class Cut(Exception):
    """The connection broke, or the server was not there."""


async def stream(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> str:
    """Return one whole answer, without ids and times. Raises `Cut`, or `AssertionError`."""
    body = {"model": "demo", "stream": True, **body}
    events = []
    try:
        async with client.stream("POST", path, json=body) as answer:
            if answer.status_code == 503 and int(answer.headers["retry-after"]) > 0:
                raise Cut
            if answer.status_code != 200:
                raise AssertionError(f"{answer.status_code}: {(await answer.aread()).decode()}")
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    events.append(json.loads(line[6:]))
                elif line == "data: [DONE]":
                    return canonical(path, events)
    except httpx.TransportError as error:
        raise Cut from error
    if events and events[-1].get("type") in (*ENDS, "response.failed"):
        return canonical(path, events)
    raise Cut


def canonical(path: str, events: list[Any]) -> str:
    """Return what a client keeps of a stream: how its text is cut into events may differ."""
    failed = [event for event in events if event.get("error")]
    if failed:
        raise AssertionError(f"{path}: {failed[0]}")
    if path == "/v1/responses":
        last = events[-1]["response"]
        if last["status"] == "failed":
            raise AssertionError(f"{path}: {last['error']}")
        final = {name: last[name] for name in ("output", "status", "usage")}
        final["usage"].pop("input_tokens_details", None)
        return _VOLATILE.sub("", json.dumps(final))
    joined: dict[str, Any] = {}
    for event in events:
        _collect(joined, path, event)
    return _VOLATILE.sub("", json.dumps(joined, sort_keys=True))


def _collect(joined: dict[str, Any], path: str, event: Any) -> None:
    """Join the texts of an event's deltas by their place; other values replace or extend."""
    if path == "/v1/messages":
        at = f"block {event.get('index')}"
        _join(joined, at, event.get("delta") or event.get("content_block") or {})
        return
    for choice in event.get("choices", ()):
        at = f"choice {choice['index']}"
        _join(joined, at, choice)


def _join(joined: dict[str, Any], at: str, value: Any) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            if name not in ("type", "index", "role", "id"):
                _join(joined, f"{at}.{name}", item)
    elif isinstance(value, list):
        is_calls = at.endswith("tool_calls")
        for item in value:
            if is_calls:
                _join(joined, f"{at}.{item['index']}", item)
            else:
                joined.setdefault(at, []).append(item)
    elif isinstance(value, str):
        joined[at] = joined.get(at, "") + value
    elif value is not None:
        joined[at] = value


@dataclass
class Kills:
    """Kills of one kind of process of a server under all streams."""

    server: Server
    victim: str
    count: int
    seed: int = 0
    report: Callable[[str], None] = lambda text: None
    num_killed: int = 0
    num_answers: int = 0
    num_constrained: int = 0
    """Number of whole answers that a grammar held."""
    num_cuts: int = 0
    faults: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Kill `count` processes while every stream repeats; then wait until nothing runs."""
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=0)
        async with httpx.AsyncClient(
            base_url=self.server.url, timeout=TIMEOUT_S, limits=limits
        ) as client:
            chosen = requests()
            expected = [await stream(client, *request) for request in chosen]
            killing = asyncio.ensure_future(self._kill(client))
            await asyncio.gather(
                killing,
                *(
                    self._repeat(client, request, answer, killing)
                    for request, answer in zip(chosen, expected, strict=True)
                ),
            )
        await asyncio.to_thread(self._check_idle)

    async def _repeat(
        self,
        client: httpx.AsyncClient,
        request: tuple[str, dict[str, Any]],
        expected: str,
        killing: asyncio.Future[None],
    ) -> None:
        while not killing.done() and len(self.faults) < MAX_FAULTS:
            try:
                answer = await stream(client, *request)
            except Cut:
                self.num_cuts += 1
                await asyncio.sleep(0.3)
                continue
            except AssertionError as error:
                self._add_fault(f"after {self.num_killed} kills: {error}"[:2000])
                continue
            self.num_answers += 1
            self.num_constrained += is_constrained(request[1])
            if answer != expected:
                self._add_fault(f"{request}:\n  {answer}\n  instead of\n  {expected}")

    def _add_fault(self, fault: str) -> None:
        self.faults.append(fault)
        self.report(fault)

    async def _kill(self, client: httpx.AsyncClient) -> None:
        rng = random.Random(self.seed)
        while self.num_killed < self.count and len(self.faults) < MAX_FAULTS:
            await asyncio.sleep(0.3 * rng.random())
            pids = await asyncio.to_thread(self._victims)
            before = self._num_needed()
            if not pids:
                continue
            with suppress(ProcessLookupError):
                os.kill(rng.choice(pids), signal.SIGKILL)
                self.num_killed += 1
                self.report(f"kill {self.num_killed}: {self.num_answers} answers")
            if self.victim == "parent" and self.server.process is not None:
                await asyncio.to_thread(self.server.process.wait)
                await asyncio.to_thread(self._restart)
            await self._wait_until_ready(client)
            # some streams end between two kills
            while self._num_needed() < before + 2 and len(self.faults) < MAX_FAULTS:
                await asyncio.sleep(0.02)

    def _victims(self) -> list[int]:
        """Return the processes of the victim; of the loader once it opens an adapter."""
        found = self.server.processes()
        if self.victim != LOADER:
            return found[self.victim]
        wait_for_adapter()
        return found["engine"]

    def _num_needed(self) -> int:
        """Return the number of answers that needed the victim."""
        return self.num_constrained if self.victim in GRAMMARS else self.num_answers

    def _restart(self) -> None:
        until_s = time.monotonic() + TIMEOUT_S
        while True:  # its processes still hold the port for a moment
            with suppress(RuntimeError):
                self.server.start()
                return
            if time.monotonic() > until_s:
                raise AssertionError("the server cannot be started again")

    async def _wait_until_ready(self, client: httpx.AsyncClient) -> None:
        until_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until_s:
            with suppress(httpx.TransportError):
                if (await client.get("/readyz")).status_code == 200:
                    return
            await asyncio.sleep(0.05)
        raise AssertionError("the server does not get ready")

    def _check_idle(self) -> None:
        until_s = time.monotonic() + TIMEOUT_S
        gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        while left := {g: found for g in gauges if (found := self.server.metric(g))}:
            if time.monotonic() > until_s:
                self.faults.append(f"without requests: {left}")
                return
            time.sleep(0.05)


def run_kills(
    folder: Path,
    victim: str,
    count: int,
    seed: int = 0,
    report: Callable[[str], None] = lambda text: None,
) -> Kills:
    """Serve, kill, and return what was found."""
    with serving(folder, victim) as server:
        kills = Kills(server, victim, count, seed, report)
        asyncio.run(kills.run())
    if victim not in CUTS and kills.num_cuts:
        kills.faults.append(f"{kills.num_cuts} streams were cut")
    return kills


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--victim", choices=VICTIMS, default="engine")
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = partial(print, flush=True)
        kills = run_kills(Path(folder), args.victim, args.kills, args.seed, report)
        if kills.faults:
            print((Path(folder) / "log").read_text()[-4000:])
    print(
        f"{kills.num_killed} kills of {args.victim}: {kills.num_answers} whole answers, "
        f"{kills.num_cuts} cuts, {len(kills.faults)} faults, {time.monotonic() - begun_s:.0f} s"
    )
    return 1 if kills.faults else 0


if __name__ == "__main__":
    sys.exit(main())
