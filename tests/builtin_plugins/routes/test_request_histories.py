"""Request histories of `engine explain`."""

from __future__ import annotations

import json
from itertools import count

from builtin_plugins.routes.explain.history import RequestHistories
from tests.core.scheduler.fake_worker import VOCAB, Engine


def engine_of(remembered=100, **sizes):
    seconds = count()
    histories = RequestHistories(remembered, lambda: float(next(seconds)))
    return Engine(
        extensions=[histories], **{"max_num_seqs": 4, "budget": 64, "num_blocks": 12, **sizes}
    )


def add(engine, number, length=8, max_tokens=24):
    prompt = [1 + (number * 31 + i * 7) % (VOCAB - 1) for i in range(length)]
    engine.add(f"cmpl-{number}-ab12", prompt, max_tokens, eos_token_ids=())


def explain_request(engine, number):
    return json.loads(engine.scheduler.call("explain", "request", f"cmpl-{number}".encode()))


def test_preemptions_and_displaced_time_are_reported():
    engine = engine_of()
    for number in range(4):
        add(engine, number)
    engine.run()
    assert engine.scheduler.num_preemptions > 0
    histories_found = [explain_request(engine, number)[0] for number in range(4)]
    assert (
        sum(history["preemptions"] for history in histories_found)
        == engine.scheduler.num_preemptions
    )
    for history in histories_found:
        assert (history["state"], history["tokens"]) == ("ended", 32)
        assert (history["displaced_s"] > 0) == (history["preemptions"] > 0)
        assert history["computed_s"] > 0


def test_waiting_reason_is_reported():
    engine = engine_of(max_num_seqs=2, num_blocks=100)
    for number in range(4):
        add(engine, number)
    assert (
        explain_request(engine, 0)[0]["why"]
        == "it is the next; no step has started since it arrived"
    )
    engine.step()
    assert "tokens" in explain_request(engine, 0)[0]["why"]
    assert (
        explain_request(engine, 2)[0]["why"]
        == "it is the next; all 2 rows of the batch are in use (--max-num-seqs)"
    )
    assert explain_request(engine, 3)[0]["why"].startswith("1 others wait before it")
    engine.run()


def test_missing_cache_room_is_reported():
    engine = engine_of(num_blocks=12, budget=256)
    add(engine, 0, length=36, max_tokens=4)
    add(engine, 1, length=36, max_tokens=4)
    engine.step()
    (history,) = explain_request(engine, 1)
    assert history["state"] == "waiting"
    assert "the KV cache has no room for its 36 tokens" in history["why"]
    engine.run()


def test_only_recent_ended_requests_are_remembered():
    engine = engine_of(remembered=2)
    for number in range(3):
        add(engine, number)
    engine.run()
    assert sorted(len(explain_request(engine, number)) for number in range(3)) == [0, 1, 1]
    assert explain_request(engine, 99) == []
