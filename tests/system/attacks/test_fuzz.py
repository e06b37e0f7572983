"""The fuzzer with several seeds, and its own behaviour."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.testing.checkpoints import make_checkpoint
from tests.system.attacks.corpus_files import Request
from tests.system.attacks.fuzz import RequestGenerator, Tally, fuzz
from tests.system.attacks.server_under_test import (
    Answer,
    HealthyClient,
    ServerUnderTest,
    start_server,
)

DESCRIPTION = {
    "components": {
        "schemas": {
            "B": {
                "type": "object",
                "properties": {"a": {"type": "integer", "minimum": 3}},
                "required": ["a"],
            }
        }
    },
    "paths": {
        "/x": {
            "post": {
                "requestBody": {
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/B"}}}
                }
            }
        }
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerUnderTest]:
    with start_server("--disable-uvicorn-access-log", "--log-level", "error") as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_requests_are_answered_and_healthy_streams_unchanged(
    server: ServerUnderTest, seed: int
) -> None:
    tally = fuzz(server, HealthyClient(server), seed, seconds=1800, max_requests=400)
    assert tally.faults == []
    assert tally.sent >= 400
    assert {200, 400} <= tally.by_status.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "labels"),
    [("BertModel", {}), ("BertForSequenceClassification", {"num_labels": 1})],
)
def test_pooling_models_answer_random_requests(
    architecture: str, labels: dict[str, int], tmp_path: Path
) -> None:
    folder = make_checkpoint(architecture, tmp_path, seed=1, **labels)
    flags = ("--model", str(folder), "--enable-tokenizer-info-endpoint", "--log-level", "error")
    with start_server(*flags, warm=False) as server:
        tally = fuzz(server, None, 1, seconds=1800, max_requests=400)
    assert tally.faults == []
    assert {200, 400} <= tally.by_status.keys()


def test_seed_determines_requests() -> None:
    def first(seed: int) -> list[Request]:
        generator = RequestGenerator(DESCRIPTION, random.Random(seed))
        return [generator.generate() for _ in range(50)]

    assert first(1) == first(1)
    assert first(1) != first(2)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500, '{"error": {"message": "a", "type": "b", "param": null, "code": null}}'),
        Answer(400, "no"),
        Answer(-1, "the connection was cut"),
        Answer(0, "no answer"),
        Answer(
            404,
            '{"error": {"message": "at 0x7f00aabbccdd", "type": "b", "param": null, "code": null}}',
        ),
    ],
)
def test_fault_is_recorded_with_its_request(answer: Answer) -> None:
    tally = Tally()
    tally.record(Request(path="/x", body_hex=b"abc".hex(), status=[]), answer)
    (fault,) = tally.faults
    assert "POST /x b'abc'" in fault


def test_valid_answers_are_no_faults() -> None:
    tally = Tally()
    rejection = '{"error": {"message": "a: b", "type": "c", "param": "a", "code": null}}'
    for answer in (Answer(200, "{}"), Answer(400, rejection), Answer(503, rejection)):
        tally.record(Request(path="/x", status=[]), answer)
    assert tally.faults == []
