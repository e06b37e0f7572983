"""Minutes of random requests of two clients, with kills; and how faults are found."""

from __future__ import annotations

import random
from collections.abc import Callable

import httpx
import pytest

from tests.system.attacks.belongings import SCENARIOS, OwnerClient
from tests.system.attacks.corpus_files import Request
from tests.system.attacks.server_under_test import Answer
from tests.system.attacks.soak import KEYS, MARKS, Memory, Owners, soak

ID = "resp_0123456789abcdef"
MINUTES = 1.1
"""Bound of growth of a short run: caches still fill in its second quarter."""


@pytest.mark.slow
@pytest.mark.parametrize("kill_every_s", [0.0, 15.0])
def test_two_clients_are_served_for_minutes(kill_every_s: float) -> None:
    run = soak(120.0, seed=5, kill_every_s=kill_every_s, min_requests=1500)
    assert run.tally.faults == []
    assert {200, 400, 404} <= run.tally.by_status.keys()
    assert run.scenarios.keys() >= SCENARIOS.keys()
    assert (run.num_kills > 1) == bool(kill_every_s)
    assert run.grown(MINUTES) == {}


class FakeServer:
    """Answers with one stored response of the first client, and with a status to the other."""

    def __init__(self, others_status: int, text: str = "") -> None:
        self.others_status = others_status
        self.text = text
        self.is_deleted = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.headers["authorization"] == f"Bearer {KEYS[1]}":
            return httpx.Response(self.others_status, json={})
        self.is_deleted |= request.method == "DELETE"
        found = {"id": ID, "store": True, "output": [], "previous_response_id": ID}
        status = 404 if self.is_deleted and request.method == "GET" else 200
        return httpx.Response(status, json={**found, "text": MARKS[0] + self.text})


def owner_client(server: Callable[[httpx.Request], httpx.Response]) -> OwnerClient:
    return OwnerClient(
        *("http://test", KEYS[0], MARKS[0], KEYS[1], MARKS[1]),
        rng=random.Random(1),
        transport=httpx.MockTransport(server),
    )


def test_scenario_with_right_answers_is_done() -> None:
    client = owner_client(FakeServer(404))
    client.run("stored response")
    assert (client.faults, client.done) == ([], {"stored response": 1})


@pytest.mark.parametrize(
    ("server", "fault"),
    [
        (FakeServer(200), "another client's GET"),
        (FakeServer(404, text=MARKS[1]), "the other client's text"),
        (lambda request: httpx.Response(500, text="oh"), "status 500"),
        (lambda request: httpx.Response(503), "503 without Retry-After"),
    ],
    ids=["answered", "mixed up", "500", "503"],
)
def test_scenario_with_wrong_answers_is_a_fault(
    server: Callable[[httpx.Request], httpx.Response], fault: str
) -> None:
    client = owner_client(server)
    client.run("stored response")
    assert client.faults[0].startswith(fault)


def test_scenario_of_a_busy_server_is_no_fault() -> None:
    client = owner_client(lambda request: httpx.Response(503, headers={"retry-after": "1"}))
    client.run("stored response")
    assert (client.faults, client.done) == ([], {"refused": 1})


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", f"/v1/responses/{ID}", 200, "{}"),
        ("DELETE", f"/v1/responses/{ID}", 200, "{}"),
        ("GET", "/v1/models", 200, f'{{"id": "{ID}"}}'),
    ],
)
def test_answer_about_another_clients_response_is_a_fault(
    method: str, path: str, status: int, text: str
) -> None:
    owners = Owners()
    made = Request(path="/v1/responses", body_hex=b"{}".hex(), status=[])
    assert owners.note(made, KEYS[0], Answer(200, f'{{"id": "{ID}"}}')) == []
    tried = Request(path=path, method=method, status=[])
    assert owners.note(tried, KEYS[0], Answer(status, text)) == []
    assert owners.note(tried, KEYS[1], Answer(status, text)) != []
    assert owners.note(tried, KEYS[1], Answer(404, "{}")) == []


def test_growth_compares_the_last_quarter_with_the_second() -> None:
    memory = Memory([(float(i), {"engine": 100 + (i > 11) * 10, "parent": 7}) for i in range(16)])
    assert memory.growth() == {"engine": 1.1, "parent": 1.0}
    assert Memory().growth() == {}
