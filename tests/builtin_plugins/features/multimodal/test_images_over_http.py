"""Images through OpenAI's and Anthropic's clients: every way to send one gives the same answer."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import torch
from safetensors.torch import save

from tests.builtin_plugins.features.multimodal.media.pictures import data_url, picture
from tests.builtin_plugins.models.vision.checkpoints import MODELS
from tests.served import served
from tests.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("new_interpreters")]

PICTURE = picture((40, 30))
OTHER = picture((30, 40), colour=(0, 90, 200))
QUESTION = "what is it"
MAX_TOKENS = 12


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves a folder without a log."""

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "a.png").write_bytes(PICTURE)
    return folder


@pytest.fixture(scope="module")
def pictures_url(folder: Path) -> Iterator[str]:
    """The URL of a server of the folder on the loopback."""
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[openai.OpenAI]:
    checkpoint = tmp_path_factory.mktemp("llava")
    MODELS["llava"].make(checkpoint)
    sizes = ("--max-model-len", "256", "--kv-cache-memory-bytes", "16M", "--num-threads", "1")
    sources = ("--allowed-media-domains", "127.0.0.1", "--allowed-local-media-path", str(folder))
    allowed = ("--enable-mm-embeds", "--trust-request-mm-kwargs", "--log-level", "error")
    tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    with served(str(checkpoint), *sizes, *sources, *allowed, *tools) as client:
        yield client


def chat(client: openai.OpenAI, *urls: str, text: str = QUESTION) -> tuple[str, int]:
    """Return the answer to a question about images, and the number of prompt tokens."""
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content: Any = [*images, {"type": "text", "text": text}]
    answer = client.chat.completions.create(
        model="",
        messages=[{"role": "user", "content": content}],
        max_tokens=MAX_TOKENS,
        temperature=0,
    )
    assert answer.usage is not None
    return answer.choices[0].message.content or "", answer.usage.prompt_tokens


def test_every_way_to_send_an_image_gives_the_same_answer(
    client: openai.OpenAI, folder: Path, pictures_url: str
) -> None:
    expected, num_tokens = chat(client, data_url(PICTURE))
    assert chat(client, f"{pictures_url}/a.png")[0] == expected
    assert chat(client, f"file://{folder}/a.png")[0] == expected
    part: Any = {"type": "input_image", "image_url": data_url(PICTURE)}
    content: Any = [part, {"type": "input_text", "text": QUESTION}]
    response = client.responses.create(
        model="",
        input=[{"role": "user", "content": content}],
        max_output_tokens=MAX_TOKENS,
        temperature=0,
    )
    assert response.output_text == expected
    assert response.usage is not None
    assert response.usage.input_tokens == num_tokens
    url = str(client.base_url).removesuffix("/v1/")
    with anthropic.Anthropic(base_url=url, api_key="none", timeout=TIMEOUT_S) as other:
        for source in (
            {
                "type": "base64",
                "media_type": "image/png",
                "data": base64.b64encode(PICTURE).decode(),
            },
            {"type": "url", "url": f"{pictures_url}/a.png"},
        ):
            blocks: Any = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
            message = other.messages.create(
                model="",
                messages=[{"role": "user", "content": blocks}],
                max_tokens=MAX_TOKENS,
                extra_body={"temperature": 0},
            )
            assert "".join(getattr(block, "text", "") for block in message.content) == expected
            counted = other.messages.count_tokens(
                model="", messages=[{"role": "user", "content": blocks}]
            )
            assert counted.input_tokens == num_tokens
            usage = message.usage
            assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == num_tokens


def test_answers_depend_on_images_and_on_their_order(client: openai.OpenAI) -> None:
    one = data_url(PICTURE)
    two = data_url(OTHER)
    answers = {chat(client, *urls)[0] for urls in ((one,), (two,), (one, two), (two, one), ())}
    assert len(answers) == 5


def test_stream_of_an_answer_about_an_image_is_the_answer(client: openai.OpenAI) -> None:
    expected, num_tokens = chat(client, data_url(PICTURE))
    image: Any = {"type": "image_url", "image_url": {"url": data_url(PICTURE)}}
    stream = client.chat.completions.create(
        model="",
        messages=[{"role": "user", "content": [image, {"type": "text", "text": QUESTION}]}],
        max_tokens=MAX_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == expected
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == num_tokens


def test_spelled_placeholder_stays_text(client: openai.OpenAI) -> None:
    plain = chat(client, text="a [image] b")[1]
    assert chat(client, text="a <image> b")[1] == plain
    _, with_image = chat(client, data_url(PICTURE), text="a [image] b")
    answer, num_tokens = chat(client, data_url(PICTURE), text="a <image> b")
    assert num_tokens == with_image
    assert answer


def test_uuid_of_a_known_image_needs_no_content(client: openai.OpenAI) -> None:
    text = {"type": "text", "text": QUESTION}
    whole = {"type": "image_url", "image_url": {"url": data_url(OTHER)}, "uuid": "other"}
    named = {"type": "image_url", "image_url": None, "uuid": "other"}
    unknown = {**named, "uuid": "never sent"}
    answers = []
    for part in (whole, named):
        content: Any = [part, text]
        answer = client.chat.completions.create(
            model="",
            messages=[{"role": "user", "content": content}],
            max_tokens=MAX_TOKENS,
            temperature=0,
        )
        answers.append(answer.choices[0].message.content)
    assert answers[0] == answers[1]
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\].content\[0\].image_url"):
        client.chat.completions.create(
            model="",
            messages=[{"role": "user", "content": [unknown, text]}],  # type: ignore[list-item,misc]
        )


def ask(client: openai.OpenAI, part: Any, **fields: Any) -> tuple[str, int]:
    """Return the answer to a question about one part, and the number of prompt tokens."""
    content: Any = [part, {"type": "text", "text": QUESTION}]
    answer = client.chat.completions.create(
        model="",
        messages=[{"role": "user", "content": content}],
        max_tokens=MAX_TOKENS,
        temperature=0,
        extra_body=fields,
    )
    assert answer.usage is not None
    return answer.choices[0].message.content or "", answer.usage.prompt_tokens


def embeddings_part(seed: int, *, as_file: bool) -> dict[str, Any]:
    values = torch.randn(16, 64, generator=torch.Generator().manual_seed(seed))
    data = save({"image_embeds": values}) if as_file else values.numpy().tobytes()
    encoded: Any = base64.b64encode(data).decode()
    if not as_file:
        encoded = {"data": encoded, "dtype": "float32", "shape": [16, 64]}
    return {"type": "image_embeds", "image_embeds": encoded}


def test_embeddings_are_parts_in_both_forms(client: openai.OpenAI) -> None:
    _, num_tokens = chat(client, data_url(PICTURE))
    answer, counted = ask(client, embeddings_part(1, as_file=True))
    assert counted == num_tokens
    assert ask(client, embeddings_part(1, as_file=False))[0] == answer
    assert ask(client, embeddings_part(2, as_file=True))[0] != answer
    named = {**embeddings_part(1, as_file=True), "uuid": "mine"}
    assert ask(client, named)[0] == answer
    assert ask(client, {**named, "image_embeds": None})[0] == answer


def test_pickled_and_misshapen_embeddings_are_refused(client: openai.OpenAI) -> None:
    file = io.BytesIO()
    torch.save(torch.zeros(16, 64), file)
    wide = {"data": base64.b64encode(bytes(16 * 65 * 4)).decode(), "dtype": "float32"}
    for embeddings, word in (
        (base64.b64encode(file.getvalue()).decode(), "torch.save"),
        ({**wide, "shape": [16, 65]}, "expected floats of shape"),
    ):
        with pytest.raises(openai.BadRequestError, match=word) as refused:
            ask(client, {"type": "image_embeds", "image_embeds": embeddings})
        assert refused.value.param == "messages[0].content[0].image_embeds"
    assert ask(client, embeddings_part(1, as_file=True))[0]


def test_keywords_of_the_processor_are_fields_of_trusted_requests(client: openai.OpenAI) -> None:
    part = {"type": "image_url", "image_url": {"url": data_url(PICTURE)}}
    plain = ask(client, part)[0]
    assert ask(client, part, mm_processor_kwargs={"do_normalize": False})[0] != plain
    assert ask(client, part, mm_processor_kwargs={})[0] == plain
    for kwargs, word in (({"no_such": 1}, "got 'no_such'"), ([1], "expected a dict")):
        with pytest.raises(openai.BadRequestError, match=word) as refused:
            ask(client, part, mm_processor_kwargs=kwargs)
        assert refused.value.param == "mm_processor_kwargs"


def test_forced_tool_calls_have_their_arguments_with_an_image(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"animal": {"enum": ["cat", "dog"]}},
        "required": ["animal"],
        "additionalProperties": False,
    }
    tool: Any = {"type": "function", "function": {"name": "found", "parameters": schema}}
    content: Any = [{"type": "image_url", "image_url": {"url": data_url(PICTURE)}}]
    answer = client.chat.completions.create(
        model="",
        messages=[{"role": "user", "content": content}],
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "found"}},
        max_tokens=100,
        temperature=0,
    )
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert json.loads(call.function.arguments)["animal"] in ("cat", "dog")


def test_api_processes_import_no_torch(client: openai.OpenAI) -> None:
    chat(client, data_url(PICTURE))
    listening = processes_listening(client.base_url.port or 0)
    assert listening
    for pid in listening:
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "libtorch" not in maps, pid


def processes_listening(port: int) -> list[str]:
    """Return the processes with a listening socket of a port: the server's parent and its API."""
    table = Path("/proc/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in table]
    own = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and row[1][-4:] == f"{port:04X}"}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if own & {str(link.readlink()) for link in (process / "fd").iterdir()}:
                found.append(process.name)
    return found
