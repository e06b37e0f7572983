"""The fuzzer's requests of some seeds, and that they are what they say."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacked import Answer, Attacked, Neighbour, attacked
from corpus_files import Request
from fuzz import Made, Tally, fuzz

from core.testing.checkpoints import make_checkpoint

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
def server() -> Iterator[Attacked]:
    with attacked("--disable-uvicorn-access-log", "--log-level", "error") as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_is_sent_is_answered_and_nobody_beside_notices(
    server: Attacked, seed: int
) -> None:
    tally = fuzz(server, Neighbour(server), seed, seconds=1800, most=400)
    assert tally.faults == []
    assert tally.sent >= 400
    assert {200, 400} <= tally.by_status.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "labels"),
    [("BertModel", {}), ("BertForSequenceClassification", {"num_labels": 1})],
)
def test_models_that_are_pooled_answer_whatever_is_sent(
    architecture: str, labels: dict[str, int], tmp_path: Path
) -> None:
    folder = make_checkpoint(architecture, tmp_path, seed=1, **labels)
    flags = ("--model", str(folder), "--enable-tokenizer-info-endpoint", "--log-level", "error")
    with attacked(*flags, warm=False) as server:
        tally = fuzz(server, None, 1, seconds=1800, most=400)
    assert tally.faults == []
    assert {200, 400} <= tally.by_status.keys()


def test_a_seed_sends_the_same_again_and_another_does_not() -> None:
    def first(seed: int) -> list[Request]:
        made = Made(DESCRIPTION, random.Random(seed))
        return [made.request() for _ in range(50)]

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
def test_what_should_not_be_is_noted_with_what_was_sent(answer: Answer) -> None:
    tally = Tally()
    tally.take(Request(path="/x", body_hex=b"abc".hex(), status=[]), answer)
    (fault,) = tally.faults
    assert "POST /x b'abc'" in fault


def test_what_should_be_is_not() -> None:
    tally = Tally()
    refused = '{"error": {"message": "a: b", "type": "c", "param": "a", "code": null}}'
    for answer in (Answer(200, "{}"), Answer(400, refused), Answer(503, refused)):
        tally.take(Request(path="/x", status=[]), answer)
    assert tally.faults == []
