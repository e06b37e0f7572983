"""Requests that nobody foresaw: made of `/openapi.json`, and of the corpus by mutation. The same
seed sends the same.

Every answer must be one: no 5xx but 503, no connection cut, no inside told; whoever streams beside
notices nothing, no process is replaced. Run: python tests/attacks/fuzz.py [--seconds N] [--seed N]
[--url URL [--key KEY]]
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from attacked import KEY, Answer, Attacked, Neighbour, attacked
from corpus_files import Request, load_corpus

NUMBERS: Final[tuple[Any, ...]] = (
    *(0, -1, 1, 2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30),
    *(0.0, -0.0, 5e-324, 1e-46, 1e308, 1.5, 0.1, 1 - 2**-53),
)
TEXTS: Final = (
    *(
        "",
        " ",
        "a",
        "\x00",
        "\n",
        "\ufeff",
        "\u202e",
        "e\u0301" * 20,
        "\U0001f600" * 20,
        "\ud800",
        "\\",
        '"',
        "<|im_end|>",
    ),
    *(
        "a" * 300,
        "{{ 1 }}",
        "../../etc/passwd",
        "null",
        "NaN",
        "1e999",
        "<tool_call>",
        "</think>",
        "%00",
        "a\r\nb: c",
    ),
)
RARELY: Final = 0.04
MOST_TOKENS: Final = 12
"""Long answers show nothing more, and take time."""
BATCH: Final = 16
"""Requests beside one healthy stream or more."""
_SKIPPED: Final = ("/metrics",)


@dataclass
class Made:
    """Requests from a seed."""

    description: Any
    """What `/openapi.json` says."""
    rng: random.Random
    bodies: list[tuple[str, bytes]] = field(default_factory=list)
    """Paths and bodies of the corpus."""

    def __post_init__(self) -> None:
        for attack in load_corpus().values():
            for request in attack.request:
                content = request.content("127.0.0.1:9")
                if (
                    content is not None
                    and len(content) < 20_000
                    and not request.slow
                    and request.keyed
                ):
                    self.bodies.append((request.path, content))

    def request(self) -> Request:
        """Return the next one."""
        rng = self.rng
        if rng.random() < 0.4 and self.bodies:
            path, content = rng.choice(self.bodies)
            for _ in range(rng.randint(1, 3)):
                content = self.mutated(content)
            return _asked("POST", path, content)
        path, method, schema = rng.choice(
            [each for each in self._operations() if each[0] not in _SKIPPED]
        )
        path = re.sub(
            r"{\w+}", lambda _: rng.choice(("demo", "%00", "a/../b", "x" * 300, "resp_0")), path
        )
        if schema is None:
            return _asked(method, path, b"")
        content = encoded(self._short(self.value(schema, 0)))
        return _asked(method, path, self.mutated(content) if rng.random() < 0.2 else content)

    def _operations(self) -> Iterator[tuple[str, str, Any]]:
        for path, operations in self.description["paths"].items():
            for method, operation in operations.items():
                body = operation.get("requestBody")
                schema = None if body is None else body["content"]["application/json"]["schema"]
                for _ in range(1 if schema is None else 8):
                    yield path, method.upper(), schema

    def value(self, schema: Any, depth: int) -> Any:
        """Return a value that mostly fits a schema."""
        rng = self.rng
        if "$ref" in schema:
            schema = self.description["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        if rng.random() < RARELY:
            return self.anything(depth)
        if "anyOf" in schema:
            kinds = [each for each in schema["anyOf"] if each.get("type") != "null"]
            return self.value(rng.choice(kinds), depth)
        if "enum" in schema:
            return rng.choice(schema["enum"])
        match schema.get("type"):
            case "boolean":
                return rng.random() < 0.5
            case "integer" | "number" as kind:
                return self._number(schema, kind)
            case "string":
                return (
                    rng.choice(TEXTS)
                    if rng.random() < 0.3
                    else rng.choice(("hello", "what is 2 + 2?", "demo"))
                )
            case "array":
                return [
                    self.value(schema.get("items", {}), depth + 1)
                    for _ in range(rng.choice((0, 1, 1, 2, 5)))
                ]
            case "object":
                return self._object(schema, depth)
        return self.anything(depth)

    def _object(self, schema: Any, depth: int) -> dict[str, Any]:
        rng = self.rng
        properties = schema.get("properties", {})
        if not properties:
            return (
                rng.choice((dict, self._message, self._tool))()
                if rng.random() < 0.9
                else {"a": self.anything(depth)}
            )
        share = rng.choice((0.02, 0.1, 0.3))
        chosen = [
            name
            for name in properties
            if name in schema.get("required", ()) or rng.random() < share
        ]
        found = {name: self.value(properties[name], depth + 1) for name in chosen}
        if rng.random() < RARELY:
            found[rng.choice(TEXTS)] = self.anything(depth)
        return found

    def _message(self) -> dict[str, Any]:
        role = self.rng.choice(("user", "assistant", "system", "tool", "nobody"))
        return {
            "role": role,
            "content": self.rng.choice(("hello", *TEXTS, [{"type": "text", "text": "a"}], None, 5)),
        }

    def _tool(self) -> dict[str, Any]:
        schema = self.rng.choice(
            ({}, {"type": "object"}, {"type": "object", "properties": {"a": {"type": "integer"}}})
        )
        return {
            "type": "function",
            "function": {"name": self.rng.choice(("f", "get_weather", "")), "parameters": schema},
        }

    def _number(self, schema: Any, kind: str) -> Any:
        rng = self.rng
        ends = [
            schema[name] for name in ("minimum", "maximum", "exclusiveMinimum") if name in schema
        ]
        near = [end + by for end in ends for by in (-1, 0, 1)]
        if rng.random() < 0.3:
            return rng.choice((*NUMBERS, *near))
        return rng.randint(0, 5) if kind == "integer" else rng.choice((0.0, 0.5, 1.0, rng.random()))

    def anything(self, depth: int) -> Any:
        """Return any JSON value."""
        rng = self.rng
        if depth < 4 and rng.random() < 0.3:
            if rng.random() < 0.5:
                return [self.anything(depth + 1) for _ in range(rng.randint(0, 3))]
            return {rng.choice(TEXTS): self.anything(depth + 1) for _ in range(rng.randint(0, 3))}
        return rng.choice((*NUMBERS, *TEXTS, True, False, None))

    def _short(self, body: Any) -> Any:
        """Let most answers be short, and of few sequences."""
        if isinstance(body, dict) and self.rng.random() < 0.95:
            for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
                if type(body.get(name, 99)) is int and (body.get(name) or 99) > MOST_TOKENS:
                    body[name] = MOST_TOKENS
            if type(body.get("n")) is int and 4 < body["n"] <= 64:
                body["n"] = 4
            if type(body.get("min_tokens")) is int and body["min_tokens"] > MOST_TOKENS:
                body["min_tokens"] = MOST_TOKENS
        return body

    def mutated(self, content: bytes) -> bytes:
        """Return a body with something changed in its bytes, or in its values."""
        rng = self.rng
        if not content:
            return rng.randbytes(3)
        at = rng.randrange(len(content))
        match rng.randrange(6):
            case 0:
                return content[:at]
            case 1:
                return (
                    content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
                )
            case 2:
                return (
                    content[:at] + content[at : at + 40] * rng.randint(1, 20) + content[at + 40 :]
                )
            case 3:
                return (
                    content[:at] + rng.choice(TEXTS).encode(errors="surrogatepass") + content[at:]
                )
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            return content[at:]
        return encoded(self._swapped(value))

    def _swapped(self, value: Any) -> Any:
        """Return a value of which one part is another."""
        if isinstance(value, dict) and value and self.rng.random() < 0.9:
            name = self.rng.choice(list(value))
            return {**value, name: self._swapped(value[name])}
        if isinstance(value, list) and value and self.rng.random() < 0.8:
            at = self.rng.randrange(len(value))
            return [*value[:at], self._swapped(value[at]), *value[at + 1 :]]
        return self.anything(0)


def encoded(value: Any) -> bytes:
    """Return JSON, or what is nearly JSON: NaN, infinity and lone surrogates are written as Python
    would.
    """
    return json.dumps(value, ensure_ascii=True).encode()


def _asked(method: str, path: str, content: bytes) -> Request:
    return Request(path=path, method=method, body_hex=content.hex(), status=[])


@dataclass
class Tally:
    """What has come of it."""

    sent: int = 0
    by_status: dict[int, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def take(self, request: Request, answer: Answer) -> None:
        """Count an answer; keep what should not be."""
        self.sent += 1
        self.by_status[answer.status] = self.by_status.get(answer.status, 0) + 1
        found = answer.faults() + ([answer.text] if answer.status <= 0 else [])
        sent = bytes.fromhex(request.body_hex)
        self.faults += [
            f"{fault}\n    {request.verb()} {request.path} {sent[:2000]!r}" for fault in found
        ]


def fuzz(
    server: Attacked,
    neighbour: Neighbour | None,
    seed: int,
    seconds: float,
    most: int = 10**9,
    said: Callable[[str], None] = lambda fault: None,
) -> Tally:
    """Send requests of a seed until time is up, or until there were so many; `said` is told each
    fault as it is found.
    """
    made = Made(server.get("/openapi.json").json(), random.Random(seed))
    tally = Tally()
    until = time.monotonic() + seconds
    engines = server.engines()
    restarts = server.get("/health").json()["restarts"]
    told = 0
    while time.monotonic() < until and tally.sent < most:
        for fault in tally.faults[told:]:
            said(fault)
        told = len(tally.faults)
        try:
            with neighbour.beside() if neighbour else _nobody():
                for _ in range(BATCH):
                    request = made.request()
                    tally.take(request, *server.ask(request))
        except AssertionError as error:
            tally.faults.append(f"{error} (after {tally.sent} requests)")
        if server.get("/livez").status_code != 200:
            tally.faults.append(f"/livez fails after {tally.sent} requests")
    if not engines <= server.engines() or server.get("/health").json()["restarts"] != restarts:
        tally.faults.append("a process was replaced")
    for fault in tally.faults[told:]:
        said(fault)
    return tally


@contextmanager
def _nobody() -> Iterator[None]:
    yield


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", help="a server that runs already; default: one of its own")
    parser.add_argument("--key", default=KEY)
    args = parser.parse_args()
    said = partial(print, flush=True)
    if args.url:
        server = Attacked(None, args.url.rstrip("/"), key=args.key)
        tally = fuzz(server, None, args.seed, args.seconds, said=said)
    else:
        with attacked("--disable-uvicorn-access-log", "--log-level", "error") as server:
            tally = fuzz(server, Neighbour(server), args.seed, args.seconds, said=said)
    print(
        f"{tally.sent} requests of seed {args.seed}; answers by status: "
        f"{dict(sorted(tally.by_status.items()))}"
    )
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
