"""Unseen pictures through OpenAI's and Anthropic's clients, as base64 and by URL."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from examples.demo_model.vision.evaluate import LONGEST, Example, unseen
from tests.served import served
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.slow

PICTURES = 200
TARGET = 0.95
AT_ONCE = 8


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves a folder without a log."""

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    return unseen(seed=2, count=PICTURES)


@pytest.fixture(scope="module")
def files(examples: list[Example]) -> list[bytes]:
    """The pictures as PNG files."""
    return [_png(example) for example in examples]


def _png(example: Example) -> bytes:
    buffer = io.BytesIO()
    example.image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def urls(files: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """URLs of the pictures on the loopback."""
    folder: Path = tmp_path_factory.mktemp("pictures")
    for i, data in enumerate(files):
        (folder / f"{i}.png").write_bytes(data)
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield [f"http://127.0.0.1:{server.server_port}/{i}.png" for i in range(len(files))]
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    limits = ("--num-threads", "1", "--max-model-len", "512", "--log-level", "error")
    with served("demo:vision", *limits, "--allowed-media-domains", "127.0.0.1") as made:
        yield made


def ask_openai(client: openai.OpenAI, url: str, text: str) -> str:
    content: Any = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": text},
    ]
    answer = client.chat.completions.create(
        model="",
        messages=[{"role": "user", "content": content}],
        max_tokens=LONGEST,
        temperature=0,
    )
    return answer.choices[0].message.content or ""


def ask_anthropic(client: anthropic.Anthropic, source: dict[str, str], text: str) -> str:
    blocks: Any = [{"type": "text", "text": text}, {"type": "image", "source": source}]
    message = client.messages.create(
        model="",
        messages=[{"role": "user", "content": blocks}],
        max_tokens=LONGEST,
        extra_body={"temperature": 0},
    )
    return "".join(getattr(block, "text", "") for block in message.content)


@pytest.mark.parametrize("sent_as", ["base64", "url"])
@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_answers_about_two_hundred_unseen_pictures(
    client: openai.OpenAI,
    examples: list[Example],
    files: list[bytes],
    urls: list[str],
    name: str,
    sent_as: str,
) -> None:
    base_url = str(client.base_url).removesuffix("/v1/")
    with (
        anthropic.Anthropic(base_url=base_url, api_key="none", timeout=TIMEOUT_S) as other,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):

        def answer(i: int) -> str:
            text = examples[i].question.text
            data = base64.b64encode(files[i]).decode()
            if name == "openai":
                url = urls[i] if sent_as == "url" else f"data:image/png;base64,{data}"
                return ask_openai(client, url, text)
            source = {"type": "base64", "media_type": "image/png", "data": data}
            return ask_anthropic(
                other, {"type": "url", "url": urls[i]} if sent_as == "url" else source, text
            )

        texts = list(pool.map(answer, range(len(examples))))
    wrong = [
        (example.question, text)
        for example, text in zip(examples, texts, strict=True)
        if text != example.question.answer
    ]
    assert len(wrong) <= (1 - TARGET) * len(examples), wrong
