"""Random requests from `/openapi.json` and mutations of the corpus, reproducible by seed.

Every request must be answered: no 5xx but 503, no cut connection, no leak in an error. Healthy
streams must not change, and no process may be replaced.

Run: python -m tests.system.attacks.fuzz [--seconds N] [--seed N] [--url URL [--key KEY]]
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tests.system.attacks.corpus_files import Request, load_corpus
from tests.system.attacks.server_under_test import (
    KEY,
    Answer,
    HealthyClient,
    ServerUnderTest,
    start_server,
)

NUMBERS: Final[tuple[Any, ...]] = (
    *(0, -1, 1, 2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30),
    *(0.0, -0.0, 5e-324, 1e-46, 1e308, 1.5, 0.1, 1 - 2**-53),
)
TEXTS: Final = (
    *("", " ", "a", "\x00", "\n", "\ufeff", "\u202e", "e\u0301" * 20, "\U0001f600" * 20),
    *("\ud800", "\\", '"', "<|im_end|>", "a" * 300, "{{ 1 }}", "../../etc/passwd", "null"),
    *("NaN", "1e999", "<tool_call>", "</think>", "%00", "a\r\nb: c"),
)
WORDS: Final = ("hello", "what is 2 + 2?", "demo")
ROLES: Final = ("user", "assistant", "system", "tool", "unknown")
PATH_VALUES: Final = ("demo", "%00", "a/../b", "x" * 300, "resp_0")
INVALID_SHARE: Final = 0.04
MAX_TOKENS: Final = 12
"""Longer answers take time and find nothing more."""
BATCH: Final = 16
"""Requests during one healthy stream or more."""
_SKIPPED: Final = ("/metrics",)


@dataclass
class RequestGenerator:
    """Generates requests from a seed."""

    description: Any
    """The server's `/openapi.json`."""
    rng: random.Random
    bodies: list[tuple[str, bytes]] = field(default_factory=list)
    """Paths and bodies of the corpus."""

    def __post_init__(self) -> None:
        for attack in load_corpus().values():
            for request in attack.request:
                content = request.content("127.0.0.1:9")
                if content is None or request.slow or not request.authenticated:
                    continue
                if len(content) < 20_000:
                    self.bodies.append((request.path, content))

    def generate(self) -> Request:
        """Return the next request."""
        rng = self.rng
        if rng.random() < 0.4 and self.bodies:
            path, content = rng.choice(self.bodies)
            for _ in range(rng.randint(1, 3)):
                content = self.mutate(content)
            return _request("POST", path, content)
        path, method, schema = rng.choice(
            [operation for operation in self._operations() if operation[0] not in _SKIPPED]
        )
        path = re.sub(r"{\w+}", lambda _: rng.choice(PATH_VALUES), path)
        if schema is None:
            return _request(method, path, b"")
        content = encode_json(self._limit_length(self.value(schema, 0)))
        return _request(method, path, self.mutate(content) if rng.random() < 0.2 else content)

    def _operations(self) -> Iterator[tuple[str, str, Any]]:
        for path, operations in self.description["paths"].items():
            for method, operation in operations.items():
                body = operation.get("requestBody")
                schema = None if body is None else body["content"]["application/json"]["schema"]
                for _ in range(1 if schema is None else 8):
                    yield path, method.upper(), schema

    def value(self, schema: Any, depth: int) -> Any:
        """Return a value that usually matches a schema."""
        rng = self.rng
        if "$ref" in schema:
            schema = self.description["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        if rng.random() < INVALID_SHARE:
            return self.any_value(depth)
        if "anyOf" in schema:
            kinds = [kind for kind in schema["anyOf"] if kind.get("type") != "null"]
            return self.value(rng.choice(kinds), depth)
        if "enum" in schema:
            return rng.choice(schema["enum"])
        match schema.get("type"):
            case "boolean":
                return rng.random() < 0.5
            case "integer" | "number" as kind:
                return self._number(schema, kind)
            case "string":
                return rng.choice(TEXTS if rng.random() < 0.3 else WORDS)
            case "array":
                length = rng.choice((0, 1, 1, 2, 5))
                items = schema.get("items", {})
                return [self.value(items, depth + 1) for _ in range(length)]
            case "object":
                return self._object(schema, depth)
        return self.any_value(depth)

    def _object(self, schema: Any, depth: int) -> dict[str, Any]:
        rng = self.rng
        properties = schema.get("properties", {})
        if not properties:
            if rng.random() < 0.9:
                return rng.choice((dict, self._message, self._tool))()
            return {"a": self.any_value(depth)}
        share = rng.choice((0.02, 0.1, 0.3))
        chosen = [
            name
            for name in properties
            if name in schema.get("required", ()) or rng.random() < share
        ]
        value = {name: self.value(properties[name], depth + 1) for name in chosen}
        if rng.random() < INVALID_SHARE:
            value[rng.choice(TEXTS)] = self.any_value(depth)
        return value

    def _message(self) -> dict[str, Any]:
        contents = ("hello", *TEXTS, [{"type": "text", "text": "a"}], None, 5)
        return {"role": self.rng.choice(ROLES), "content": self.rng.choice(contents)}

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
        bounds = [
            schema[name] for name in ("minimum", "maximum", "exclusiveMinimum") if name in schema
        ]
        edge_cases = [bound + offset for bound in bounds for offset in (-1, 0, 1)]
        if rng.random() < 0.3:
            return rng.choice((*NUMBERS, *edge_cases))
        return rng.randint(0, 5) if kind == "integer" else rng.choice((0.0, 0.5, 1.0, rng.random()))

    def any_value(self, depth: int) -> Any:
        """Return any JSON value."""
        rng = self.rng
        if depth < 4 and rng.random() < 0.3:
            if rng.random() < 0.5:
                return [self.any_value(depth + 1) for _ in range(rng.randint(0, 3))]
            return {rng.choice(TEXTS): self.any_value(depth + 1) for _ in range(rng.randint(0, 3))}
        return rng.choice((*NUMBERS, *TEXTS, True, False, None))

    def _limit_length(self, body: Any) -> Any:
        """Limit tokens and sequences, of 95% of the requests."""
        if isinstance(body, dict) and self.rng.random() < 0.95:
            for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
                if type(body.get(name, 99)) is int and (body.get(name) or 99) > MAX_TOKENS:
                    body[name] = MAX_TOKENS
            if type(body.get("n")) is int and 4 < body["n"] <= 64:
                body["n"] = 4
            if type(body.get("min_tokens")) is int and body["min_tokens"] > MAX_TOKENS:
                body["min_tokens"] = MAX_TOKENS
        return body

    def mutate(self, content: bytes) -> bytes:
        """Return a body with one change, of its bytes or of its JSON values."""
        rng = self.rng
        if not content:
            return rng.randbytes(3)
        at = rng.randrange(len(content))
        match rng.randrange(6):
            case 0:
                return content[:at]
            case 1:
                flipped = bytes([content[at] ^ 1 << rng.randrange(8)])
                return content[:at] + flipped + content[at + 1 :]
            case 2:
                repeated = content[at : at + 40] * rng.randint(1, 20)
                return content[:at] + repeated + content[at + 40 :]
            case 3:
                inserted = rng.choice(TEXTS).encode(errors="surrogatepass")
                return content[:at] + inserted + content[at:]
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            return content[at:]
        return encode_json(self._replace_part(value))

    def _replace_part(self, value: Any) -> Any:
        """Return a value with one part replaced."""
        if isinstance(value, dict) and value and self.rng.random() < 0.9:
            name = self.rng.choice(list(value))
            return {**value, name: self._replace_part(value[name])}
        if isinstance(value, list) and value and self.rng.random() < 0.8:
            at = self.rng.randrange(len(value))
            return [*value[:at], self._replace_part(value[at]), *value[at + 1 :]]
        return self.any_value(0)


def encode_json(value: Any) -> bytes:
    """Return JSON with Python's extensions: NaN, infinity and lone surrogates."""
    return json.dumps(value, ensure_ascii=True).encode()


def _request(method: str, path: str, content: bytes) -> Request:
    return Request(path=path, method=method, body_hex=content.hex(), status=[])


@dataclass
class Tally:
    """Counts of answers, and the faults found."""

    sent: int = 0
    by_status: dict[int, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def record(self, request: Request, answer: Answer) -> None:
        """Count an answer and keep its faults."""
        self.sent += 1
        self.by_status[answer.status] = self.by_status.get(answer.status, 0) + 1
        faults = answer.faults()
        if answer.status <= 0:
            faults.append(answer.text)
        sent = bytes.fromhex(request.body_hex)[:2000]
        self.faults += [
            f"{fault}\n    {request.http_method()} {request.path} {sent!r}" for fault in faults
        ]


def fuzz(
    server: ServerUnderTest,
    client: HealthyClient | None,
    seed: int,
    seconds: float,
    max_requests: int = 10**9,
    report: Callable[[str], None] = lambda fault: None,
) -> Tally:
    """Send random requests for a time or up to a number; call `report` with each new fault."""
    generator = RequestGenerator(server.get("/openapi.json").json(), random.Random(seed))
    tally = Tally()
    deadline = time.monotonic() + seconds
    engines = server.engine_pids()
    restarts = server.get("/health").json()["restarts"]
    reported = 0
    while time.monotonic() < deadline and tally.sent < max_requests:
        for fault in tally.faults[reported:]:
            report(fault)
        reported = len(tally.faults)
        try:
            with client.streaming() if client else nullcontext():
                for _ in range(BATCH):
                    request = generator.generate()
                    tally.record(request, *server.send(request))
        except AssertionError as error:
            tally.faults.append(f"{error} (after {tally.sent} requests)")
        if server.get("/livez").status_code != 200:
            tally.faults.append(f"/livez fails after {tally.sent} requests")
    restarted = server.get("/health").json()["restarts"] != restarts
    if restarted or not engines <= server.engine_pids():
        tally.faults.append("a process was replaced")
    for fault in tally.faults[reported:]:
        report(fault)
    return tally


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", help="address of a running server; default: start one")
    parser.add_argument("--key", default=KEY)
    args = parser.parse_args()
    report = partial(print, flush=True)
    if args.url:
        server = ServerUnderTest(None, args.url.rstrip("/"), key=args.key)
        tally = fuzz(server, None, args.seed, args.seconds, report=report)
    else:
        with start_server("--disable-uvicorn-access-log", "--log-level", "error") as server:
            tally = fuzz(server, HealthyClient(server), args.seed, args.seconds, report=report)
    print(
        f"{tally.sent} requests of seed {args.seed}; answers by status: "
        f"{dict(sorted(tally.by_status.items()))}"
    )
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
