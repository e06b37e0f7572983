"""Chat answers of the scripted model over in-process HTTP."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from builtin_plugins.output_parsers.testing import Parsed
from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM
from core.config import EngineConfig
from tests.timeouts import TIMEOUT_S

# Without the tools, which would make prompts long and their answers slow.
TEMPLATE: Final = "<|im_start|>user\n{{ messages[0].content }}<|im_end|>\n<|im_start|>assistant\n"


@dataclass(frozen=True, slots=True)
class Question:
    """Text that the model writes, with the server's options and the request's fields."""

    text: str
    options: Mapping[str, Any]
    """Options of the server."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the request."""


@contextmanager
def scripted_engine(texts: Iterable[str], special: Iterable[str] = ()) -> Iterator[AsyncLLM]:
    """Yield an engine that writes the texts with about 4 characters per token.

    `special` are special tokens of its tokenizer.
    """
    engine = AsyncLLM(
        "scripted:",
        scripted_special_tokens=sorted(special),
        scripted_tokens=sorted(_fragments(texts)),
        disable_frontend_multiprocessing=True,
        max_model_len=2048,
        max_num_seqs=256,
        kv_cache_memory_bytes=1 << 26,
        num_threads=1,
        log_level="error",
    )
    try:
        yield engine
    finally:
        engine.shutdown()


def _fragments(texts: Iterable[str]) -> set[str]:
    """Return fragments of the texts, cut anywhere, also inside of tags."""
    rng = random.Random(0)
    found: set[str] = set()
    for text in texts:
        at = 0
        while at < len(text):
            size = rng.randrange(1, 9)
            found.add(text[at : at + size].replace(",", ""))
            at += size
    return found - {""}


def answers(engine: AsyncLLM, questions: Sequence[Question]) -> list[tuple[Parsed, Parsed]]:
    """Return each answer as a client parses it, whole and streamed; all run at once."""
    apps: dict[str, Any] = {}
    for question in questions:
        config = EngineConfig(options={**question.options, "trust_request_chat_template": True})
        key = json.dumps(question.options)
        apps[key] = (
            apps.get(key) or HttpServer(engine, engine.config, [OpenAIRoutes(engine, config)]).app
        )

    async def send_all() -> list[Parsed]:
        calls = [
            _send(apps[json.dumps(question.options)], question, stream)
            for question in questions
            for stream in (False, True)
        ]
        return await asyncio.gather(*calls)

    found = asyncio.run(send_all())
    return list(zip(found[::2], found[1::2], strict=True))


async def _send(app: Any, question: Question, stream: bool) -> Parsed:
    messages = [{"role": "user", "content": question.text}]
    body = {"messages": messages, "stream": stream, "chat_template": TEMPLATE, **question.fields}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test", timeout=TIMEOUT_S
    ) as client:
        reply = await client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    if not stream:
        (choice,) = reply.json()["choices"]
        return _parsed(choice["message"], choice["finish_reason"])
    chunks = [json.loads(block.removeprefix("data: ")) for block in reply.text.split("\n\n")[:-2]]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return _parsed(joined(choice["delta"] for choice in choices), reasons[-1])


def joined(deltas: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the message that a client builds from deltas."""
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for name, value in delta.items():
            if name != "tool_calls":
                message[name] = message.get(name, "") + value
                continue
            for piece in value:
                call = calls.setdefault(piece["index"], {"function": {"arguments": ""}})
                function = {**call["function"], **piece["function"]}
                function["arguments"] = (
                    call["function"]["arguments"] + piece["function"]["arguments"]
                )
                call.update(
                    {key: given for key, given in piece.items() if key != "index"},
                    function=function,
                )
    return message | ({"tool_calls": [*calls.values()]} if calls else {})


def _parsed(message: Mapping[str, Any], reason: str | None) -> Parsed:
    whole = []
    broken = []
    for call in message.get("tool_calls") or []:
        name = call["function"]["name"]
        arguments = call["function"]["arguments"]
        try:
            whole.append((name, json.loads(arguments)))
        except ValueError:
            broken.append((name, arguments))
    assert reason == ("tool_calls" if whole else "stop")
    assert message.get("reasoning") == message.get("reasoning_content")
    return Parsed(
        content=message.get("content") or "",
        calls=tuple(whole),
        reasoning=message.get("reasoning") or "",
        broken=tuple(broken),
    )
