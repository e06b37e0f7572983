"""Minutes of random requests of two clients, with kills; and how faults are found."""

from __future__ import annotations

import pytest

from tests.system.attacks.corpus_files import Request
from tests.system.attacks.server_under_test import Answer
from tests.system.attacks.soak import KEYS, Memory, Owners, soak

ID = "resp_0123456789abcdef"


@pytest.mark.slow
@pytest.mark.parametrize("kill_every_s", [0.0, 15.0])
def test_two_clients_are_served_for_minutes(kill_every_s: float) -> None:
    run = soak(180.0, seed=5, kill_every_s=kill_every_s)
    assert run.tally.faults == []
    assert {200, 400, 404} <= run.tally.by_status.keys()
    assert (run.num_kills > 1) == bool(kill_every_s)
    assert run.grown() == {}


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
