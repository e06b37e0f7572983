"""Latency of `/livez` during maximum-size bodies, and cost of prompts of disconnected clients.

The first part sends each body while a separate connection polls `/livez`. The second part sends
eight prompts of 9 MB with `truncate_prompt_tokens: 10`, disconnects after a second, and measures
memory, the latency of `/metrics` and the shutdown time.

Run: python benchmarks/neighbours/large_bodies.py [-- FLAGS OF engine serve]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator

from serving import Served, served

MB = 2**20
SIZE = 10 * MB - 1024
TARGET_S = 0.05


def bodies() -> Iterator[tuple[str, str, bytes]]:
    """Yield name, path and body of each maximum-size request."""

    def prompt(text: bytes, **fields: object) -> bytes:
        return b'{"prompt":"' + text + b'",' + json.dumps({"max_tokens": 1, **fields}).encode()[1:]

    def chat(messages: bytes) -> bytes:
        return b'{"messages":[' + messages + b'],"max_tokens":1}'

    text = b"a word or two and then some more. "
    complete = "/v1/completions"
    talk = "/v1/chat/completions"
    yield "nothing", complete, prompt(b"a")
    yield "zeros", complete, b'{"prompt":[' + b"0," * (SIZE // 2) + b"0]}"
    yield "zeros without an end", complete, b'{"prompt":[' + b"0," * (SIZE // 2)
    yield "tokens, as many as may be", complete, b'{"prompt":[' + b"12345," * 520_000 + b"0]}"
    yield "empty messages", talk, chat(b"{}," * (SIZE // 3) + b"{}")
    yield "messages, as many as may be", talk, chat(b'{"role":"user"},' * 65_000 + b"{}")
    yield "depth", complete, b'{"a":' + b"[" * SIZE
    yield "names", complete, b"{" + b",".join(b'"n%d":0' % i for i in range(SIZE // 12)) + b"}"
    yield (
        "names, as many as may be",
        complete,
        b'{"logit_bias":{' + b",".join(b'"%d":0' % i for i in range(99_000)) + b"}}",
    )
    yield "a text", complete, prompt(text * (SIZE // len(text)))
    yield "a text, its end", complete, prompt(text * (SIZE // len(text)), truncate_prompt_tokens=10)
    yield "one word", complete, prompt(b"a" * SIZE)
    yield "one word, its end", complete, prompt(b"a" * SIZE, truncate_prompt_tokens=10)
    yield "escapes", complete, prompt(b"\\u6f22" * (SIZE // 6))
    yield "line ends", complete, prompt(b"\\n" * (SIZE // 2))
    yield "signs", complete, prompt(b"{[,:" * (SIZE // 4))
    yield (
        "a conversation",
        talk,
        chat(b'{"role":"user","content":"' + text * (SIZE // len(text)) + b'"}'),
    )
    turn = (
        b'{"role":"user","content":"'
        + text * 30
        + b'"},{"role":"assistant","content":"'
        + text * 30
        + b'"},'
    )
    yield "a long conversation", talk, chat(turn * (SIZE // len(turn)) + turn[:-1])
    yield (
        "a thousand texts",
        complete,
        b'{"prompt":[' + b",".join([b'"' + text * 200 + b'"'] * 1000) + b'],"max_tokens":1}',
    )
    yield "stops", complete, prompt(b"a", stop=["ab"] * 500_000)
    yield "a digit", complete, b'{"prompt":"a","seed":' + b"1" * SIZE + b"}"


async def request(server: Served, head: str, body: bytes = b"") -> tuple[int, bytes]:
    """Send a request on its own connection; return status and body."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        lines = f"{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        lines += f"content-length: {len(body)}\r\n\r\n"
        writer.write(lines.encode())
        for start in range(0, len(body), MB):
            writer.write(body[start : start + MB])
            await writer.drain()
        answer = await reader.read()
        return int(answer.split(b" ", 2)[1]), answer
    finally:
        writer.close()


async def worst_latency(server: Served, path: str, body: bytes) -> tuple[float, int, float]:
    """Return the maximum `/livez` latency during a body, the body's status and its time."""
    waits: list[float] = []
    ended = asyncio.Event()

    async def look() -> None:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        while not ended.is_set():
            began_s = time.perf_counter()
            writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
            data = b""
            while b"alive" not in data:
                chunk = await reader.read(65536)
                if not chunk:
                    raise ConnectionError(
                        f"the server closed the connection that polls /livez: {data!r}"
                    )
                data += chunk
            waits.append(time.perf_counter() - began_s)
            await asyncio.sleep(0.002)
        writer.close()

    looking = asyncio.create_task(look())
    await asyncio.sleep(0.2)
    waits.clear()
    began_s = time.perf_counter()
    status, _ = await request(server, f"POST {path}", body)
    took_s = time.perf_counter() - began_s
    ended.set()
    await looking
    return max(waits), status, took_s


async def all_bodies(server: Served, rounds: int) -> float:
    worst_s = 0.0
    for name, path, body in bodies():
        found = [await worst_latency(server, path, body) for _ in range(rounds)]
        least = min(each[0] for each in found)
        worst_s = max(worst_s, least)
        times = ", ".join(f"{each[0] * 1e3:.0f}" for each in found)
        print(
            f"{name:28} {len(body) / MB:5.1f} MB: {found[0][1]} after {found[0][2]:6.2f} s; /livez "
            f"maximum {times} ms"
        )
    return worst_s


async def abandoned(server: Served) -> None:
    body = b'{"prompt":"' + b"a" * (9 * MB) + b'","truncate_prompt_tokens":10,"max_tokens":1}'
    before = server.rss_mb()
    tasks = [asyncio.create_task(request(server, "POST /v1/completions", body)) for _ in range(8)]
    await asyncio.sleep(1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    waits = []
    for _ in range(20):
        began_s = time.perf_counter()
        await request(server, "GET /metrics")
        waits.append(time.perf_counter() - began_s)
        await asyncio.sleep(0.05)
    print(f"eight disconnected clients: /metrics within {max(waits) * 1e3:.0f} ms")
    for name, resident in server.rss_mb().items():
        print(f"  {before.get(name, 0):6} MB before, {resident:6} MB after: {name}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("flags", nargs="*", help="of engine serve")
    args = parser.parse_args()
    with served(*args.flags) as server:
        worst_s = asyncio.run(all_bodies(server, args.rounds))
        asyncio.run(abandoned(server))
        print(f"SIGTERM obeyed after {server.stop():.1f} s")
    print(
        f"/livez waits up to {worst_s * 1e3:.0f} ms, minimum of {args.rounds} (target "
        f"{TARGET_S * 1e3:.0f} ms)"
    )
    return 0 if worst_s <= TARGET_S else 1


if __name__ == "__main__":
    sys.exit(main())
