"""What `engine explain` knows of requests beside the scheduler."""

from __future__ import annotations

import json
from itertools import count

from fake_worker import VOCAB, Engine

from builtin_plugins.routes.explain.histories import Histories


def engine_of(remembered=100, **sizes):
    seconds = count()
    histories = Histories(remembered, lambda: float(next(seconds)))
    return Engine(
        extensions=[histories], **{"max_num_seqs": 4, "budget": 64, "num_blocks": 12, **sizes}
    )


def add(engine, number, length=8, max_tokens=24):
    prompt = [1 + (number * 31 + i * 7) % (VOCAB - 1) for i in range(length)]
    engine.add(f"cmpl-{number}-ab12", prompt, max_tokens, eos_token_ids=())


def told(engine, number):
    return json.loads(engine.scheduler.call("explain", "request", f"cmpl-{number}".encode()))


def test_who_was_preempted_is_told_how_often_and_for_how_long():
    engine = engine_of()
    for number in range(4):
        add(engine, number)
    engine.run()
    assert engine.scheduler.num_preemptions > 0
    stories = [told(engine, number)[0] for number in range(4)]
    assert sum(story["preemptions"] for story in stories) == engine.scheduler.num_preemptions
    for story in stories:
        assert (story["state"], story["tokens"]) == ("ended", 32)
        assert (story["displaced_s"] > 0) == (story["preemptions"] > 0)
        assert story["computed_s"] > 0


def test_who_waits_is_told_what_is_missing():
    engine = engine_of(max_num_seqs=2, num_blocks=100)
    for number in range(4):
        add(engine, number)
    assert told(engine, 0)[0]["why"] == "it is the next; no step has begun since it came"
    engine.step()
    assert "tokens" in told(engine, 0)[0]["why"]
    assert told(engine, 2)[0]["why"] == "it is the next; all 2 places are taken (--max-num-seqs)"
    assert told(engine, 3)[0]["why"].startswith("1 others wait before it")
    engine.run()


def test_who_finds_no_room_in_the_cache_is_told_so():
    engine = engine_of(num_blocks=12, budget=256)
    add(engine, 0, length=36, max_tokens=4)
    add(engine, 1, length=36, max_tokens=4)
    engine.step()
    (story,) = told(engine, 1)
    assert story["state"] == "waiting"
    assert "room for its 36 tokens in the KV cache" in story["why"]
    engine.run()


def test_only_the_last_that_ended_are_remembered():
    engine = engine_of(remembered=2)
    for number in range(3):
        add(engine, number)
    engine.run()
    assert sorted(len(told(engine, number)) for number in range(3)) == [0, 1, 1]
    assert told(engine, 99) == []
