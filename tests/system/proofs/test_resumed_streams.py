"""Streams are continued after the process that serves HTTP was killed, as often as it is."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.system.proofs.test_api_death import BROKEN, Service, serving, wait_for
from tests.timeouts import TIMEOUT_S

ONE = {"Authorization": "Bearer one"}
TWO = {"Authorization": "Bearer two"}
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
TEXT = "tell a story of many words, please, and take the time that it needs"
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 150}),
    "two choices": (
        CHAT,
        {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 80, "n": 2},
    ),
    "response": (RESPONSES, {"input": TEXT, "max_output_tokens": 150}),
    "background": (RESPONSES, {"input": TEXT, "max_output_tokens": 150, "background": True}),
}


class Reader:
    """A client that continues one stream until its end."""

    def __init__(self, service: Service, path: str, body: dict[str, Any]) -> None:
        self._service = service
        self._path = path
        self._body = body
        self.events: list[str] = []
        self.stream_id = ""
        self.is_complete = False

    def read(self, num_events: int | None = None) -> None:
        """Read further events, by default all; stop where the connection breaks."""
        try:
            with self._request() as answer:
                if answer.status_code == 503:
                    assert int(answer.headers["retry-after"]) > 0
                    return
                assert answer.status_code == 200, answer.read()
                block = ""
                for line in answer.iter_lines():
                    block += f"{line}\n"
                    if not line:
                        self._take(block)
                        block = ""
                        if num_events is not None and len(self.events) >= num_events:
                            return
                self.is_complete = self._has_end()
        except BROKEN:
            pass

    def _request(self) -> Any:
        url = self._service.url
        if not self.stream_id:
            body = {**self._body, "stream": True, "ignore_eos": True}
            return httpx.stream("POST", url + self._path, json=body, headers=ONE, timeout=TIMEOUT_S)
        after = str(len(self.events) - 1)
        if self._path == CHAT:
            headers = {**ONE, "Last-Event-ID": after}
            path = f"{CHAT}/{self.stream_id}/events"
            return httpx.stream("GET", url + path, headers=headers, timeout=TIMEOUT_S)
        path = f"{RESPONSES}/{self.stream_id}?stream=true&starting_after={after}"
        return httpx.stream("GET", url + path, headers=ONE, timeout=TIMEOUT_S)

    def _take(self, block: str) -> None:
        data = block.partition("data: ")[2].strip()
        if not self.stream_id:
            first = json.loads(data)
            self.stream_id = first["response"]["id"] if self._path == RESPONSES else first["id"]
        number = len(self.events)
        if self._path == CHAT:
            assert block.startswith(f"id: {number}\n")
        else:
            assert json.loads(data)["sequence_number"] == number
        self.events.append(data)

    def _has_end(self) -> bool:
        return (
            self.events[-1] == "[DONE]"
            or '"response.completed"' in self.events[-1]
            or ('"response.incomplete"' in self.events[-1])
        )

    def content(self) -> list[Any]:
        """Return what the events say, with their order and without ids and times."""
        found = []
        for data in self.events:
            value = {} if data == "[DONE]" else json.loads(data)
            found += [(each["index"], each["delta"]) for each in value.get("choices", ())]
            found += [value["delta"]] if isinstance(value.get("delta"), str) else []
        return found

    def text(self, index: int = 0) -> str:
        parts = [
            each if isinstance(each, str) else each[1].get("content") or ""
            for each in (
                each for each in self.content() if isinstance(each, str) or each[0] == index
            )
        ]
        return "".join(parts)


def kill_api(service: Service) -> None:
    """Kill the API process, and wait until the next one serves."""
    killed = service.api()
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: service.api() != killed)


@pytest.mark.parametrize(
    "kind", ["chat", *(pytest.param(each, marks=pytest.mark.slow) for each in list(BODIES)[1:])]
)
def test_stream_goes_on_after_the_api_process_is_killed(tmp_path: Path, kind: str) -> None:
    path, body = BODIES[kind]
    flags = ("--api-key", "one", "two", "--stream-resume-timeout", "600")
    rate = ("--scripted-tokens-per-second", "25")
    with serving(tmp_path, "scripted:", *flags, *rate) as service:
        undisturbed = Reader(service, path, body)
        undisturbed.read()
        assert undisturbed.is_complete
        reader = Reader(service, path, body)
        reader.read(6)
        start = list(reader.events)
        kill_api(service)
        while not reader.is_complete:
            if len(reader.events) < 40:
                reader.read(40)
                if len(reader.events) >= 40:
                    kill_api(service)
            else:
                reader.read()
        assert reader.events[:6] == start
        for index in range(body.get("n", 1)):
            assert reader.text(index) == undisturbed.text(index)
        again = Reader(service, path, body)
        again.stream_id = reader.stream_id
        again.read()
        assert again.events == reader.events
        other = f"{service.url}{CHAT}/{reader.stream_id}/events"
        if path == RESPONSES:
            other = f"{service.url}{RESPONSES}/{reader.stream_id}?stream=true"
        assert httpx.get(other, headers=TWO, timeout=TIMEOUT_S).status_code == 404
