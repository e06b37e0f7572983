"""Rows are shared evenly among clients, and nobody waits for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_worker import VOCAB, Engine

from builtin_plugins.features.fair_scheduling import plugin
from builtin_plugins.features.fair_scheduling.admission import NAME
from builtin_plugins.features.fair_scheduling.scheduling import Shares
from core.config import EngineConfig


def prompt(first):
    return [1 + (first * 31 + i * 7) % (VOCAB - 1) for i in range(5)]


def engine_of(num_rows, shared_rows, kept_steps=0):
    shares = Shares(num_rows, shared_rows, kept_steps)
    return Engine(extensions=[shares], max_num_seqs=num_rows, budget=256, num_blocks=800)


def add(engine, client, number, max_tokens=8):
    features = {NAME: client.encode()} if client else {}
    engine.add(
        f"{client}-{number}", prompt(number), max_tokens, eos_token_ids=(), features=features
    )


def running(engine, client):
    """How many rows a client has."""
    return sum(
        request.request_id.startswith(f"{client}-")
        for request in engine.scheduler._life.batch.running
    )


def test_one_that_is_alone_may_have_all_rows():
    engine = engine_of(8, 4)
    for number in range(20):
        add(engine, "a", number)
    engine.step()
    assert running(engine, "a") == 8
    engine.run()
    assert len(engine.finished) == 20


def test_while_others_are_there_nobody_has_more_than_a_share():
    engine = engine_of(16, 10)
    for client in "bcde":
        add(engine, client, 0, max_tokens=40)
    for number in range(50):
        add(engine, "a", number)
    engine.step()
    seen = set()
    for _ in range(30):
        seen.add(running(engine, "a"))
        assert all(running(engine, client) == 1 for client in "bcde")
        engine.step()
    assert seen == {0, 2}  # none between the end of two and the start of the next
    engine.run()
    assert len(engine.finished) == 54


@pytest.mark.parametrize("known", [False, True])
def test_whoever_comes_behind_those_that_have_all_rows_gets_the_next(known):
    """Others of the first client came before, and must not go before."""
    engine = engine_of(4, 4)
    if known:
        add(engine, "b", 9, max_tokens=1)
        engine.run()
    for number in range(40):
        add(engine, "a", number, max_tokens=8)
    add(engine, "b", 0, max_tokens=2)
    ended = 0
    while "b-0" not in engine.finished:
        engine.step()
        ended = sum(name.startswith("a-") for name in engine.finished)
    assert ended <= 8
    engine.run()
    assert len(engine.finished) == 41 + known


def test_whoever_comes_behind_many_does_not_wait_for_them():
    engine = engine_of(8, 8)
    add(engine, "b", 0, max_tokens=2)
    for number in range(100):
        add(engine, "a", number)
    engine.step()
    add(engine, "b", 1, max_tokens=2)
    for _ in range(4):
        engine.step()
    assert "b-1" in engine.finished
    engine.run()
    assert len(engine.finished) == 102


def test_a_few_rows_are_kept_for_those_who_were_there_a_while_ago():
    engine = engine_of(16, 16)
    add(engine, "b", 0, max_tokens=1)
    engine.run()
    for number in range(40):
        add(engine, "a", number, max_tokens=100)
    engine.step()
    assert running(engine, "a") == 14
    add(engine, "b", 1, max_tokens=1)
    engine.step()
    engine.step()
    assert "b-1" in engine.finished


def test_who_asks_one_thing_after_the_other_keeps_a_share_between_two():
    engine = engine_of(16, 10, kept_steps=20)
    for client in "bcde":
        add(engine, client, 0, max_tokens=4)
    for number in range(80):
        add(engine, "a", number, max_tokens=4)
    most = 0
    for turn in range(1, 6):
        for _ in range(12):  # all four are away for a while after each answer
            engine.step()
            most = max(most, running(engine, "a"))
        for client in "bcde":
            assert f"{client}-{turn - 1}" in engine.finished
            add(engine, client, turn, max_tokens=4)
    assert most == 2


def test_a_share_that_nobody_comes_back_for_goes_to_others_although_nothing_ends():
    engine = engine_of(16, 10, kept_steps=20)
    add(engine, "b", 0, max_tokens=2)
    for number in range(40):
        add(engine, "a", number, max_tokens=200)
    for _ in range(15):
        engine.step()
    assert running(engine, "a") == 5
    for _ in range(20):
        engine.step()
    assert running(engine, "a") == 14
    engine.run()
    assert len(engine.finished) == 41


def test_where_there_are_more_clients_than_rows_they_take_turns():
    engine = engine_of(16, 4, kept_steps=20)
    names = "bcdef"
    asked = dict.fromkeys("bcdef", 0)
    for number in range(300):
        add(engine, "a", number, max_tokens=8)
    for step in range(300):
        for i, client in enumerate(names):
            if (step + 5 * i) % 12 == 0:  # each is away for a while after each answer, never all
                add(engine, client, asked[client], max_tokens=8)
                asked[client] += 1
        engine.step()
        assert running(engine, "a") <= 1 or step < 24  # until all are there
    ended = sum(name.startswith("a-") for name in engine.finished)
    assert (
        0.4 <= ended / max(asked.values()) <= 0.6
    )  # as a crowd it gets half of what each of the others gets
    engine.run()
    assert len(engine.finished) == 300 + sum(asked.values())


def test_what_left_before_it_began_is_not_held_against_its_client():
    engine = engine_of(8, 2, kept_steps=20)
    for step in range(80):
        for i, client in enumerate("bc"):  # one of them always runs
            if (step + 5 * i) % 10 == 0:
                add(engine, client, step, max_tokens=8)
        if step == 1:
            for number in range(50):
                add(engine, "a", number)
        if step == 3:
            for number in range(1, 50):
                engine.abort(f"a-{number}")
            for number in range(50, 60):
                add(engine, "a", number)
        engine.step()
    assert len({f"a-{number}" for number in range(50, 60)} & set(engine.finished)) >= 2


def test_who_comes_anew_is_not_owed_what_others_had_before():
    engine = engine_of(2, 1, kept_steps=20)
    for number in range(40):
        add(engine, "a", number, max_tokens=8)
    while len(engine.finished) < 20:
        engine.step()
    for number in range(40):
        add(engine, "b", number, max_tokens=8)
    while len(engine.finished) < 40:
        engine.step()
    assert 8 <= sum(name.startswith("b-") for name in engine.finished) <= 12


def test_requests_without_a_name_are_neither_held_back_nor_counted():
    engine = engine_of(8, 2)
    for number in range(4):
        add(engine, "", number, max_tokens=20)
        add(engine, "a", number, max_tokens=20)
    engine.step()
    assert running(engine, "") == running(engine, "a") == 4


def test_what_is_aborted_while_it_waits_gives_its_place_to_others():
    engine = engine_of(8, 2)
    add(engine, "b", 0, max_tokens=60)
    for number in range(6):
        add(engine, "a", number, max_tokens=20)
    engine.step()
    assert running(engine, "a") == 1
    for name in ("a-0", "a-1", "a-2"):
        engine.abort(name)
    engine.step()
    engine.step()
    assert running(engine, "a") == 1
    engine.run()
    assert {"a-3", "a-4", "a-5", "b-0"} <= set(engine.finished)


def test_clients_are_forgotten():
    shares = Shares(8, 8)
    for number in range(3000):
        shares._see(b"%d" % number)
    assert len(shares._seen) <= 1001


@pytest.mark.parametrize(
    ("device", "options", "expected"),
    [
        ("cpu", {}, 8),
        ("cuda", {}, 64),
        ("cpu", {"fair_rows": 4}, 4),
        ("cpu", {"fair_rows": 100}, 64),
        ("cpu", {"fair_rows": 0}, 0),
    ],
)
def test_how_many_rows_are_shared(device, options, expected):
    config = EngineConfig(options=options)
    config = replace(
        config,
        scheduler=replace(config.scheduler, max_num_seqs=64),
        device=replace(config.device, device=device),
    )
    assert plugin._rows(config) == expected
    assert len(plugin.engine_scheduler_extensions(config, None)) == bool(expected)
