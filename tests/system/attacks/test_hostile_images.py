"""Hostile images against one server: each is a 400 that names its part, nothing else changes."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.builtin_plugins.features.multimodal.media.pictures import (
    data_url,
    hostile_files,
    picture,
)
from tests.builtin_plugins.models.vision.checkpoints.llava import llava
from tests.system.attacks.corpus_files import Request
from tests.system.attacks.server_under_test import (
    Answer,
    HealthyClient,
    ServerUnderTest,
    start_server,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("new_interpreters")]

HOSTILE = hostile_files()
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
INNER = [
    "http://{canary}/a.png",
    "http://localhost:{port}/a.png",
    "http://2130706433:{port}/a.png",
    "http://0x7f.1:{port}/a.png",
    "http://0177.0.0.1:{port}/a.png",
    "http://[::1]:{port}/a.png",
    "http://[::ffff:127.0.0.1]:{port}/a.png",
    "http://[::ffff:7f00:1]:{port}/a.png",
    "http://0.0.0.0:{port}/a.png",
    "http://127.0.0.1.nip.io:{port}/a.png",
    "http://user@{canary}/a.png",
    "http://{canary}\\@example.com/a.png",
    "http://169.254.169.254/latest/meta-data/",
    "http://[fd00:ec2::254]/latest/meta-data/",
    "file:///etc/passwd",
    "file://{canary}/etc/passwd",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    folder = tmp_path_factory.mktemp("llava")
    llava(folder)
    flags = ("--max-model-len", "256", "--kv-cache-memory-bytes", "16M")
    sources = ("--allowed-media-domains", "*", "--media-fetch-timeout", "2")
    with start_server(str(folder), *flags, *sources) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerUnderTest) -> HealthyClient:
    return HealthyClient(server)


def send(server: ServerUnderTest, path: str, content: list[dict[str, Any]]) -> Answer:
    name = "input" if path.endswith("responses") else "messages"
    limit = "max_output_tokens" if name == "input" else "max_tokens"
    body = {name: [{"role": "user", "content": content}], limit: 16}
    (answer,) = server.send(Request(path=path, body=json.dumps(body), status=[]))
    return answer


def in_chat(server: ServerUnderTest, *urls: str) -> Answer:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return send(server, "/v1/chat/completions", [{"type": "text", "text": "what"}, *parts])


def resident_bytes(server: ServerUnderTest) -> int:
    """Return the memory of the server's processes, shared pages counted once for each."""
    total = 0
    for pid in server.pids():
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def processes(server: ServerUnderTest) -> set[int]:
    """Return the processes that must not be restarted."""
    return {
        pid
        for pid in server.pids()
        if b"builtin_plugins.executors.process" in Path(f"/proc/{pid}/cmdline").read_bytes()
        or pid == server.process.pid  # type: ignore[union-attr]
    }


def test_hostile_files_get_their_answer_and_leave_no_trace(
    server: ServerUnderTest, client: HealthyClient
) -> None:
    for name in FORMATS:  # each decoder is loaded once
        assert in_chat(server, data_url(picture((300, 200), format=name))).status == 200
    before = resident_bytes(server)
    running = processes(server)
    unexpected = {}
    with client.streaming():
        for name, data in HOSTILE.items():
            answer = in_chat(server, data_url(picture()), data_url(data))
            expected = (400, "messages[0].content[2].image_url")
            if len(data) > 10 * 2**20:  # --max-request-bytes
                expected = (413, None)
            faults = answer.faults()
            if (answer.status, answer.error.get("param")) != expected or faults:
                unexpected[name] = answer
    assert unexpected == {}
    assert processes(server) == running
    assert resident_bytes(server) < 1.1 * before
    assert in_chat(server, data_url(picture((300, 200)))).status == 200


def test_other_protocols_name_the_part_of_a_hostile_file(server: ServerUnderTest) -> None:
    for name in ("PNG bomb of 30000x30000", "SVG", "JPEG cut in its pixels"):
        data = HOSTILE[name]
        part = {"type": "input_image", "image_url": data_url(data)}
        answer = send(server, "/v1/responses", [part])
        assert (answer.status, answer.error["param"]) == (400, "input[0].content[0].image_url")
        encoded = base64.b64encode(data).decode()
        source = {"type": "base64", "media_type": "image/png", "data": encoded}
        answer = send(server, "/v1/messages", [{"type": "image", "source": source}])
        assert (answer.status, answer.error["param"]) == (400, "messages[0].content[0].source")


def test_too_many_images_are_refused_by_their_part(
    server: ServerUnderTest, client: HealthyClient
) -> None:
    with client.streaming():
        answer = in_chat(server, *[data_url(picture((1, 1)))] * 500)
    assert answer.status == 400
    assert answer.error["param"] == "messages[0].content[101].image_url"
    # Few enough for the limit, too many tokens for the context.
    answer = in_chat(server, *[data_url(picture((1, 1)))] * 60)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")


def reserved_or_held(server: ServerUnderTest) -> list[str]:
    """Return the requests that the store of processed images holds items for."""
    folders = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    pids = server.pids()
    return [
        str(holder)
        for folder in folders
        for pid in pids
        for kind in ("reserved", "held")
        for holder in folder.glob(f"engine-media-{pid}-*/{kind}/*")
    ]


def test_refused_requests_leave_no_processed_images(server: ServerUnderTest) -> None:
    fresh = iter(range(1000))
    cut = data_url(HOSTILE["PNG cut in its pixels"])

    def new_picture() -> str:
        return data_url(picture((40, 30), colour=(next(fresh) % 256, 7, 7)))

    answers = [
        in_chat(server, new_picture(), cut),  # after the first one is processed
        in_chat(server, *[new_picture() for _ in range(30)]),  # longer than the context
        in_chat(server, new_picture(), new_picture()),
    ]
    assert [answer.status for answer in answers] == [400, 400, 200]
    assert reserved_or_held(server) == []


@pytest.mark.parametrize("url", INNER)
def test_inner_address_is_never_reached(
    server: ServerUnderTest, client: HealthyClient, url: str
) -> None:
    port = server.canary.rpartition(":")[2]
    answer = in_chat(server, url.format(canary=server.canary, port=port))
    assert (answer.status, answer.error["param"]) == (400, "messages[0].content[1].image_url")
    assert answer.faults() == []
    assert server.canary_calls == []


def test_line_of_pixels_is_refused_before_it_is_enlarged(server: ServerUnderTest) -> None:
    assert in_chat(server, data_url(picture((300, 200)))).status == 200
    before = resident_bytes(server)
    for size in ((1, 200_000), (200_000, 1)):
        answer = in_chat(server, data_url(picture()), data_url(picture(size)))
        expected = (400, "messages[0].content[2].image_url")
        assert (answer.status, answer.error["param"]) == expected
        assert "Crop it" in answer.error["message"]
    assert resident_bytes(server) < 1.1 * before
