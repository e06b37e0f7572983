"""Invalid KV blocks: which requests recompute, from where, and which tokens are dropped."""

import pytest

from core.contracts.scheduling import MayStart
from core.testing.replay import replay
from tests.core.scheduler.fake_connector import Connector, run, wake
from tests.core.scheduler.fake_worker import POISON, VOCAB, Engine, in_order


def prompt(length, first=1):
    return [1 + (first * 31 + i * 7) % (VOCAB - 1) for i in range(length)]


class Loads(Connector):
    """Reserves for the named requests, loads all but the last token; wrong from `bad` on."""

    def __init__(self, names, bad=10_000):
        super().__init__()
        self.names = set(names)
        self.bad = bad
        self.tables = {}

    def may_start(self, request):
        return MayStart.RESERVE if request.request_id in self.names else True

    def reserved(self, request, tables, num_local):
        super().reserved(request, tables, num_local)
        self.tables[request.request_id] = (tables, num_local)

    def _extent(self, request_id, first, total):
        return (
            (first, total - 1, min(self.bad, total - 1))
            if request_id in self.names
            else (first, first, first)
        )

    def wake(self, engine, name):
        wake(engine, self, name)
        self.names.discard(name)


def test_request_parked_with_blocks_starts_in_them():
    loads = Loads(["a"])
    engine = Engine(extensions=[loads], budget=64)
    engine.add("a", prompt(21), 4)
    engine.run()
    assert engine.scheduler.num_parked == 1
    tables, num_local = loads.tables["a"]
    assert (len(tables[0]), num_local) == (6, 0)
    assert engine.scheduler.kv.usage == pytest.approx(6 / 64)
    loads.wake(engine, "a")
    engine.run()
    assert (engine.plans[0].starts, engine.plans[0].new[0].blocks) == ([20], tables)
    engine.check_outputs()
    engine.check_idle()


def test_woken_request_without_budget_may_be_parked_again():
    connector = Connector(wait=0, reserve=1, remote=0)
    engine = Engine(
        block_size=1, num_blocks=400, budget=4, chunked_prefill=False, extensions=[connector]
    )
    for name in ("a", "b"):
        engine.add(name, prompt(4), 12, eos_token_ids=())
    engine.step()
    for name in ("a", "b"):
        wake(engine, connector, name)
    run(engine, connector, max_steps=100)
    engine.check_outputs()
    engine.check_idle()


def test_reserved_receives_num_cached_tokens():
    loads = Loads(["b"])
    engine = Engine(extensions=[loads], budget=64)
    engine.add("a", prompt(21), 4)
    engine.run()
    engine.add("b", prompt(21), 4)
    engine.run()
    assert loads.tables["b"][1] == 20


def test_abort_frees_reserved_blocks():
    engine = Engine(extensions=[Loads(["a"])])
    engine.add("a", prompt(21), 4)
    engine.run()
    engine.abort("a")
    engine.check_idle()


def test_request_waits_for_reserved_blocks_until_wake():
    loads = Loads(["a"])
    engine = Engine(extensions=[loads], num_blocks=8, budget=64)
    engine.add("a", prompt(21), 4)
    engine.run()
    engine.add("b", prompt(21, 2), 4)
    engine.step()
    assert engine.scheduler.schedule() is None
    loads.wake(engine, "a")
    engine.run()
    assert in_order(engine.started, "a", "b")
    engine.check_outputs()
    engine.check_idle()


def test_woken_request_with_blocks_starts_first():
    loads = Loads(["b"])
    loads.names.add("b")
    engine = Engine(extensions=[loads], num_blocks=8, budget=64)
    engine.add("b", prompt(21), 8, eos_token_ids=())
    engine.schedule()
    for i in range(3):
        engine.add(f"c{i}", prompt(21, i), 8, eos_token_ids=())
    loads.wake(engine, "b")
    engine.run()
    assert engine.started[0] == "b"
    engine.check_outputs()


def test_request_too_long_to_reserve_starts_at_once():
    engine = Engine("windowed", extensions=[Loads(["a"])], num_blocks=8, block_size=1, budget=4)
    engine.add("a", prompt(21), 4)
    engine.run()
    assert "a" in engine.finished
    engine.check_outputs()


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("bad", [0, 3, 9, 19])
@pytest.mark.parametrize("others", [(), ("b", "c")])
def test_failed_load_is_recomputed_without_wrong_tokens(depth, bad, others):
    loads = Loads(["a"], bad)
    engine = Engine(extensions=[loads], budget=64, depth=depth)
    engine.add("a", prompt(21), 8, eos_token_ids=())
    engine.run()
    loads.wake(engine, "a")
    for name in others:  # unverified blocks are no hits
        engine.add(name, prompt(21), 8, eos_token_ids=())
    engine.run()
    assert engine.worker.num_tainted >= 1
    assert all(engine.started.count(name) == 1 for name in others)
    again = [(p, p.rows.index(n.row)) for p in engine.plans for n in p.new if n.request_id == "a"][
        1
    ]
    assert again[0].starts[again[1]] == (
        20 if others else bad - bad % 4
    )  # recomputed by the others
    engine.check_outputs()
    engine.check_idle()


def test_only_requests_sharing_invalid_blocks_recompute():
    engine = Engine(extensions=[Connector(wait=0, reserve=0, remote=0)], budget=64)
    engine.add("a", prompt(21), 20, eos_token_ids=())
    engine.add("shares", [*prompt(12), 1, 2, 3], 20, eos_token_ids=())
    engine.add("less", [*prompt(8), 1, 2, 3], 20, eos_token_ids=())
    engine.add("none", prompt(21, 2), 20, eos_token_ids=())
    engine.step()
    engine.worker.corrupt["a"] = 9
    engine.run()
    assert sorted(engine.started) == ["a", "a", "less", "none", "shares", "shares"]
    engine.check_outputs()


def test_invalid_blocks_of_aborted_request_leave_the_cache():
    engine = Engine(extensions=[Connector(wait=0, reserve=0, remote=0)], budget=64)
    engine.add("a", prompt(21), 20, eos_token_ids=())
    engine.schedule()
    engine.worker.corrupt["a"] = 0
    engine.worker.contents |= {(0, block): dict.fromkeys(range(4), POISON) for block in range(1, 8)}
    engine.abort("a")
    engine.recompute("a", 0)
    engine.collect()
    engine.add("b", prompt(21), 4)
    engine.run()
    assert engine.finished["b"].num_cached_tokens == 0
    engine.check_outputs()


def test_recompute_of_uncomputed_positions_does_nothing():
    engine = Engine(budget=8)
    engine.add("a", prompt(21), 4)
    engine.step()
    engine.recompute("a", 8)
    engine.recompute("unknown", 0)
    engine.run()
    assert engine.started == ["a"]
    engine.recompute("a", 7)
    engine.check_outputs()


def test_failed_step_invalidates_reserved_prefix():
    loads = Loads(["b"])
    engine = Engine(extensions=[loads], budget=64)
    engine.add("a", prompt(21), 8)
    engine.add("b", prompt(21), 8)
    engine.schedule()
    assert loads.tables["b"][1] == 20
    engine.fail_steps()
    loads.wake(engine, "b")
    engine.run()
    assert engine.finished["b"].num_cached_tokens == 0
    engine.check_outputs()


def test_recompute_is_replayed(tmp_path):
    engine = Engine(depth=2, budget=64)
    engine.record(str(tmp_path / "journal"))
    engine.add("a", prompt(21), 20, eos_token_ids=())
    engine.step()
    engine.recompute("a", 9)
    engine.run()
    engine.journal.close()
    assert engine.started == ["a", "a"]
    report = replay(str(tmp_path / "journal"))
    assert report.identical, report.difference
    assert report.num_plans == len(engine.plans)


def test_single_running_request_yields_to_reserved_blocks():
    loads = Loads(["a"])
    engine = Engine(extensions=[loads], num_blocks=8, budget=64, max_num_seqs=1)
    engine.add("a", prompt(21), 4)
    engine.run()
    engine.add("b", prompt(5, 2), 20, eos_token_ids=())
    engine.step()
    loads.wake(engine, "a")
    while engine.scheduler.num_preemptions == 0:
        assert engine.schedule() is not None
        engine.collect()
    engine.run()
    assert engine.started == ["b", "a", "b"]
    engine.check_outputs()
