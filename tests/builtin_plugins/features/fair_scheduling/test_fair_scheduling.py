"""Fair scheduling: rows are shared evenly among clients, without starvation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builtin_plugins.features.fair_scheduling import plugin
from builtin_plugins.features.fair_scheduling.admission import NAME
from builtin_plugins.features.fair_scheduling.scheduling import FairScheduler
from core.config import EngineConfig
from tests.core.scheduler.fake_worker import VOCAB, Engine


def prompt(first):
    return [1 + (first * 31 + i * 7) % (VOCAB - 1) for i in range(5)]


def engine_of(num_rows, shared_rows, hold_steps=0):
    shares = FairScheduler(num_rows, shared_rows, hold_steps)
    return Engine(extensions=[shares], max_num_seqs=num_rows, budget=256, num_blocks=800)


def add(engine, client, number, max_tokens=8):
    features = {NAME: client.encode()} if client else {}
    engine.add(
        f"{client}-{number}", prompt(number), max_tokens, eos_token_ids=(), features=features
    )


def running(engine, client):
    """Return the number of rows of a client."""
    return sum(
        request.request_id.startswith(f"{client}-")
        for request in engine.scheduler._life.batch.running
    )


def test_single_client_may_use_all_rows():
    engine = engine_of(8, 4)
    for number in range(20):
        add(engine, "a", number)
    engine.step()
    assert running(engine, "a") == 8
    engine.run()
    assert len(engine.finished) == 20


def test_active_clients_are_limited_to_their_share():
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
    assert seen == {0, 2}  # none between two generations of requests
    engine.run()
    assert len(engine.finished) == 54


@pytest.mark.parametrize("known", [False, True])
def test_second_client_gets_the_next_free_row(known):
    """Waiting requests of the first client arrived earlier and must not start earlier."""
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


def test_second_client_passes_a_long_queue():
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


def test_rows_are_reserved_for_recent_clients():
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


def test_sequential_client_holds_its_share_between_requests():
    engine = engine_of(16, 10, hold_steps=20)
    for client in "bcde":
        add(engine, client, 0, max_tokens=4)
    for number in range(80):
        add(engine, "a", number, max_tokens=4)
    max_rows = 0
    for turn in range(1, 6):
        for _ in range(12):  # all four pause after each answer
            engine.step()
            max_rows = max(max_rows, running(engine, "a"))
        for client in "bcde":
            assert f"{client}-{turn - 1}" in engine.finished
            add(engine, client, turn, max_tokens=4)
    assert max_rows == 2


def test_unused_share_expires_to_other_clients():
    engine = engine_of(16, 10, hold_steps=20)
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


def test_more_clients_than_rows_alternate():
    engine = engine_of(16, 4, hold_steps=20)
    names = "bcdef"
    num_sent = dict.fromkeys("bcdef", 0)
    for number in range(300):
        add(engine, "a", number, max_tokens=8)
    for step in range(300):
        for i, client in enumerate(names):
            if (step + 5 * i) % 12 == 0:  # each pauses after each answer, never all at once
                add(engine, client, num_sent[client], max_tokens=8)
                num_sent[client] += 1
        engine.step()
        assert running(engine, "a") <= 1 or step < 24  # until all clients have arrived
    ended = sum(name.startswith("a-") for name in engine.finished)
    assert 0.4 <= ended / max(num_sent.values()) <= 0.6  # a crowd gets half of the others' rate
    engine.run()
    assert len(engine.finished) == 300 + sum(num_sent.values())


def test_aborted_waiting_requests_do_not_count():
    engine = engine_of(8, 2, hold_steps=20)
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


def test_new_client_gets_no_credit_for_the_past():
    engine = engine_of(2, 1, hold_steps=20)
    for number in range(40):
        add(engine, "a", number, max_tokens=8)
    while len(engine.finished) < 20:
        engine.step()
    for number in range(40):
        add(engine, "b", number, max_tokens=8)
    while len(engine.finished) < 40:
        engine.step()
    assert 8 <= sum(name.startswith("b-") for name in engine.finished) <= 12


def test_anonymous_requests_are_not_limited():
    engine = engine_of(8, 2)
    for number in range(4):
        add(engine, "", number, max_tokens=20)
        add(engine, "a", number, max_tokens=20)
    engine.step()
    assert running(engine, "") == running(engine, "a") == 4


def test_abort_while_waiting_admits_the_next_request():
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


def test_number_of_remembered_clients_is_bounded():
    shares = FairScheduler(8, 8)
    for number in range(3000):
        shares._remember(b"%d" % number)
    assert len(shares._last_seen) <= 1001


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
def test_fair_rows_default_by_device(device, options, expected):
    config = EngineConfig(options=options)
    config = replace(
        config,
        scheduler=replace(config.scheduler, max_num_seqs=64),
        device=replace(config.device, device=device),
    )
    assert plugin._shared_rows(config) == expected
    assert len(plugin.engine_scheduler_extensions(config, None)) == bool(expected)
