"""Scenarios of a client that leaves things on a server, and tries those of the other client.

A client stores responses, makes them in the background, breaks streams off and continues them,
loads and unloads adapters, sends batches, and uploads files. Its texts have a mark of its own,
which no answer to the other client may contain. Everything with an owner is a 404 for the other
client.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests.system.attacks.server_under_test import ROOT, TIMEOUT_S, Answer

ADAPTERS: Final = ROOT / "builtin_plugins" / "model_sources" / "demo" / "adapters"
FLAGS: Final = (
    *("--enable-lora", "--enable-runtime-lora", "--lora-roots", str(ADAPTERS)),
    *("--max-loras", "2", "--max-cpu-loras", "3", "--stream-resume-timeout", "60"),
)
"""Flags of a server that serves all scenarios."""
POLL_S: Final = 0.1
RUNNING: Final = ("queued", "in_progress")
ENDED: Final = ("completed", "incomplete", "cancelled")
BUSY: Final = (429, 503)
CHAT: Final = "/v1/chat/completions"
RESPONSES: Final = "/v1/responses"


class Refused(Exception):
    """The server is busy, or the client itself has removed a thing meanwhile."""


@dataclass
class OwnerClient:
    """One client: its key, its mark, and what it found."""

    url: str
    key: str
    mark: str
    others_key: str
    others_mark: str
    rng: random.Random
    note: Callable[[str, str, Answer], None] = lambda method, path, answer: None
    """Called with method and path of its own requests, and the answer."""
    transport: httpx.BaseTransport | None = None
    faults: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    """Complete runs by scenario; with `refused`, those that the server or a DELETE ended."""
    _answers: dict[str, str] = field(default_factory=dict)
    """Greedy answers by scenario; they never change."""

    def __post_init__(self) -> None:
        self._client = httpx.Client(
            base_url=self.url,
            timeout=TIMEOUT_S,
            verify=False,
            limits=httpx.Limits(max_keepalive_connections=0),
            transport=self.transport,
        )

    def run_any(self) -> None:
        """Run a scenario by chance."""
        self.run(self.rng.choice([*SCENARIOS]))

    def run(self, name: str) -> None:
        """Run a scenario; its faults are noted."""
        try:
            SCENARIOS[name](self)
            self.done[name] += 1
        except Refused:
            self.done["refused"] += 1
        except Exception as error:  # noqa: BLE001 - every error is a fault
            self.faults.append(f"{name}: {error!r}")

    def stored_response(self) -> None:
        """Store a response, read, continue and delete it."""
        made = self._post(RESPONSES, input=self.mark, metadata={"mark": self.mark}, **_tokens(4))
        if not made["store"]:
            raise Refused
        response_id = made["id"]
        self._try_others(response_id)
        found = self._get(f"{RESPONSES}/{response_id}")
        self._expect(found["output"] == made["output"], "a stored response changed", response_id)
        items = self._get(f"{RESPONSES}/{response_id}/input_items")
        self._expect(self.mark in json.dumps(items), "the input items are not the sent ones", items)
        continued = self._post(
            RESPONSES, input="and then?", previous_response_id=response_id, **_tokens(4)
        )
        self._expect(
            continued["previous_response_id"] == response_id, "the response continues none", made
        )
        self._call("DELETE", f"{RESPONSES}/{response_id}")
        gone = self._request("GET", f"{RESPONSES}/{response_id}")
        self._expect(gone.status_code == 404, "a deleted response is served", gone.text)

    def background_response(self) -> None:
        """Make a response in the background; cancel it, or wait for its end."""
        made = self._post(RESPONSES, input=self.mark, background=True, **_tokens(40))
        response_id = made["id"]
        self._try_others(response_id)
        if self.rng.random() < 0.3:
            self._call("POST", f"{RESPONSES}/{response_id}/cancel", accepted=(200, 400, 404))
        until_s = time.monotonic() + TIMEOUT_S
        while (found := self._get(f"{RESPONSES}/{response_id}"))["status"] in RUNNING:
            self._expect(time.monotonic() < until_s, "a background response never ends", found)
            time.sleep(POLL_S)
        self._expect(found["status"] in ENDED, "a background response failed", found)
        if found["status"] != "cancelled":
            self._compare("background", json.dumps([item["content"] for item in found["output"]]))

    def background_stream(self) -> None:
        """Break off the stream of a background response, and continue it."""
        body = {"input": self.mark, "background": True, "stream": True, **_tokens(40)}
        start = self._first_events(RESPONSES, body, 3)
        response_id = start[0]["response"]["id"]
        self._try_others(response_id)
        last = start[-1]["sequence_number"]
        path = f"{RESPONSES}/{response_id}?stream=true&starting_after={last}"
        events = [*start, *_events(self._call("GET", path).text)]
        numbers = [event["sequence_number"] for event in events]
        self._expect(numbers == [*range(len(events))], "events are missing or repeated", numbers)
        found = self._get(f"{RESPONSES}/{response_id}")
        self._expect(found["status"] in ENDED, "a background stream failed", found)
        if found["status"] != "cancelled":
            self._expect(events[-1]["response"] == found, "the last event differs", events[-1])
            deltas = [each for each in events if each["type"] == "response.output_text.delta"]
            self._compare("background stream", "".join(event["delta"] for event in deltas))

    def held_stream(self) -> None:
        """Break off a streamed chat, and continue it."""
        messages = [{"role": "user", "content": self.mark}]
        body = {"messages": messages, "stream": True, "ignore_eos": True, **_max_tokens(40)}
        stream_id = self._first_events(CHAT, body, 1)[0]["id"]
        path = f"{CHAT}/{stream_id}/events"
        self._try_other("GET", path, stream_id)
        events = _events(self._call("GET", path).text)
        texts = [choice["delta"].get("content") for each in events for choice in each["choices"]]
        self._compare("held stream", "".join(text or "" for text in texts))

    def adapter(self) -> None:
        """Load an adapter, chat with it, and unload it; others may unload it by its number."""
        name = f"adapter-{self.rng.randrange(10**9)}"  # every client sees the names of models
        load = {"lora_name": name, "lora_path": str(ADAPTERS / "pirate")}
        self._call("POST", "/v1/load_lora_adapter", load)
        try:
            reply = self._request("POST", CHAT, self._chat_body(name))
            if reply.status_code == 200:
                text = reply.json()["choices"][0]["message"]["content"]
                self._expect(text.startswith("Arr!"), "the adapter has no effect", text)
                if name in [card["id"] for card in self._get("/v1/models")["data"]]:
                    self.done["listed adapter"] += 1
            else:
                is_gone = reply.status_code in (*BUSY, 404)
                self._expect(is_gone, "a loaded adapter is not served", reply.text)
        finally:
            self._unload(name)
        gone = self._request("POST", CHAT, self._chat_body(name))
        is_gone = gone.status_code in (*BUSY, 404)
        self._expect(is_gone, "an unloaded adapter is served", gone.text)

    def batch(self) -> None:
        """Send several conversations as a batch."""
        one = self._chat_body("demo")
        body = one | {"messages": [one["messages"]] * 3}
        choices = self._call("POST", f"{CHAT}/batch", body).json()["choices"]
        texts = [choice["message"]["content"] for choice in choices]
        self._expect(texts == [self._chat("demo")] * 3, "a batch is answered otherwise", texts)

    def files(self) -> None:
        """Upload and delete a file, and create a batch of it: not served, and said so."""
        upload = {"file": ("requests.jsonl", self.mark.encode() * 5000)}
        for method, path, sent in (
            ("POST", "/v1/files", {"files": upload, "data": {"purpose": "batch"}}),
            ("GET", "/v1/files", {}),
            ("DELETE", f"/v1/files/{self.mark}", {}),
            ("POST", "/v1/batches", {"json": {"input_file_id": "file-1"}}),
            ("GET", "/v1/batches", {}),
        ):
            reply = self._send(self.key, method, path, **sent)
            is_refused = reply.status_code == 404 and "run-batch" in reply.text
            self._expect(is_refused, f"{method} {path} does not say how batches run", reply.text)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def _chat_body(self, model: str) -> dict[str, Any]:
        messages = [{"role": "user", "content": "Say hello hello hello."}]
        return {"model": model, "messages": messages, **_max_tokens(12)}

    def _chat(self, model: str) -> str:
        reply = self._call("POST", CHAT, self._chat_body(model))
        return str(reply.json()["choices"][0]["message"]["content"])

    def _unload(self, name: str) -> None:
        """Unload an adapter, also where the server is busy for a while."""
        until_s = time.monotonic() + TIMEOUT_S
        while True:
            reply = self._request("POST", "/v1/unload_lora_adapter", {"lora_name": name})
            if reply.status_code not in BUSY or time.monotonic() > until_s:
                break
            time.sleep(POLL_S)
        self._expect(reply.status_code in (200, 404), "an adapter is not unloaded", reply.text)

    def _try_others(self, response_id: str) -> None:
        """Read, continue, cancel and delete a response with the other client's key."""
        one = f"{RESPONSES}/{response_id}"
        for method, path in (
            ("GET", one),
            ("GET", f"{one}?stream=true"),
            ("GET", f"{one}/input_items"),
            ("POST", f"{one}/cancel"),
            ("DELETE", one),
        ):
            self._try_other(method, path, response_id)
        for path in (RESPONSES, f"{RESPONSES}/input_tokens"):
            body = {"input": "b", "previous_response_id": response_id, "model": "demo"}
            self._try_other("POST", path, response_id, body)

    def _try_other(self, method: str, path: str, thing: str, body: Any = None) -> None:
        """Try a thing with the other client's key: it looks like one that never was."""
        reply = self._send(self.others_key, method, path, json=body)
        if reply.status_code in BUSY:
            return
        is_unknown = reply.status_code == 404 and self.mark not in reply.text.replace(thing, "")
        self._expect(is_unknown, f"another client's {method} {path} is answered", reply.text)

    def _first_events(self, path: str, body: Any, count: int) -> list[Any]:
        """Return the first events of a stream, and break it off."""
        events: list[Any] = []
        headers = {"authorization": f"Bearer {self.key}"}
        with self._client.stream("POST", path, json=body, headers=headers) as reply:
            if reply.status_code != 200:
                reply.read()
                self._check(self.key, "POST", path, reply)
                raise Refused
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    events.append(json.loads(line.removeprefix("data: ")))
                if len(events) == count:
                    break
        self.note("POST", path, Answer(200, json.dumps(events)))
        return events

    def _post(self, path: str, **body: Any) -> Any:
        return self._call("POST", path, body).json()

    def _get(self, path: str) -> Any:
        return self._call("GET", path).json()

    def _call(
        self, method: str, path: str, body: Any = None, accepted: tuple[int, ...] = (200,)
    ) -> httpx.Response:
        """Return an answer with an accepted status.

        Raises `Refused` where the server is busy, or has the client's thing no more: random
        requests of the same client delete it, or take its share of the store.
        """
        reply = self._request(method, path, body)
        if reply.status_code in BUSY or (reply.status_code == 404 and path.startswith(RESPONSES)):
            raise Refused
        self._expect(reply.status_code in accepted, f"{method} {path}", reply.text)
        return reply

    def _request(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return self._send(self.key, method, path, json=body)

    def _send(self, key: str, method: str, path: str, **content: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        reply = self._client.request(method, path, headers=headers, **content)
        self._check(key, method, path, reply)
        return reply

    def _check(self, key: str, method: str, path: str, reply: httpx.Response) -> None:
        """Check what holds for every answer."""
        if key == self.key:
            self.note(method, path, Answer(reply.status_code, reply.text))
        status = reply.status_code
        fault = ""
        if status >= 500 and status != 503:
            fault = f"status {status}"
        elif status == 503 and not int(reply.headers.get("retry-after", 0)):
            fault = "503 without Retry-After"
        elif key == self.key and self.others_mark in reply.text:
            fault = "the other client's text is in the answer"
        if fault:
            self.faults.append(f"{fault}: {reply.text[:300]}\n    {method} {path}")

    def _compare(self, name: str, answer: str) -> None:
        """Compare a greedy answer to the first one."""
        expected = self._answers.setdefault(name, answer)
        self._expect(answer == expected, f"the answer to {name} is not {expected!r}", answer)

    def _expect(self, is_true: bool, fault: str, found: Any) -> None:
        if not is_true:
            self.faults.append(f"{fault}: {found!s:.600}")
            raise Refused


SCENARIOS: Final[dict[str, Callable[[OwnerClient], None]]] = {
    "stored response": OwnerClient.stored_response,
    "background response": OwnerClient.background_response,
    "background stream": OwnerClient.background_stream,
    "held stream": OwnerClient.held_stream,
    "adapter": OwnerClient.adapter,
    "batch": OwnerClient.batch,
    "files": OwnerClient.files,
}


def _tokens(count: int) -> dict[str, Any]:
    return {"model": "demo", "max_output_tokens": count, "temperature": 0}


def _max_tokens(count: int) -> dict[str, Any]:
    return {"max_tokens": count, "temperature": 0}


def _events(text: str) -> list[Any]:
    found = (event.partition("data: ")[2] for event in text.split("\n\n"))
    return [json.loads(each) for each in found if each.startswith("{")]
