"""Completions route as in FastAPI's documentation: a model per chunk and a `StreamingResponse`.

Tokens come from a task in the same process, without an engine or detokenizer.

Run: python benchmarks/serving/plain_fastapi.py SECONDS_BETWEEN_CHUNKS RECORDED; prints its port.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import sys
import time
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

HOST: Final = "127.0.0.1"


class Body(BaseModel):
    """Request body."""

    prompt: str
    max_tokens: int = 16
    ignore_eos: bool = False
    stream: bool = False


class Choice(BaseModel):
    """A choice of a chunk."""

    index: int
    text: str
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class Chunk(BaseModel):
    """One event."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[Choice]


async def serve(pause_s: float, texts: list[str]) -> None:
    """Listen, and send the next text to every open stream at a pace."""
    app = FastAPI()
    queues: dict[asyncio.Queue[str | None], int] = {}

    @app.post("/v1/completions")
    async def complete(body: Body) -> StreamingResponse:
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        queues[queue] = 0
        answer_id = f"cmpl-{secrets.token_hex(16)}"
        created = int(time.time())

        async def events() -> AsyncGenerator[str]:
            while (text := await queue.get()) is not None:
                chunk = Chunk(
                    id=answer_id,
                    created=created,
                    model="demo",
                    choices=[Choice(index=0, text=text)],
                )
                yield f"data: {chunk.model_dump_json()}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def tick() -> None:
        due_s = time.monotonic()
        while True:
            for queue, at in list(queues.items()):
                queue.put_nowait(texts[at] if at < len(texts) else None)
                queues[queue] = at + 1
                if at == len(texts):
                    del queues[queue]
            due_s = max(due_s + pause_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())

    listener = socket.create_server((HOST, 0), backlog=2048)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    ticking = asyncio.create_task(tick())
    await uvicorn.Server(config).serve(sockets=[listener])
    ticking.cancel()


def run_on_the_quickest_loop(serving: Coroutine[Any, Any, None]) -> None:
    """Run it on uvloop if installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


def main() -> None:
    """Serve until stopped."""
    run_on_the_quickest_loop(
        serve(float(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())["texts"])
    )


if __name__ == "__main__":
    main()
