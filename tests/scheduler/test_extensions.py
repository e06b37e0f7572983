"""A toy extension in every role: gate, remote cache, drafts, payloads, keeper of blocks."""

import pytest
from fake_worker import VOCAB, Engine

from core.errors import PluginError
from core.step import StepResult


def prompt(length, first=1):
    return [1 + (first * 31 + i * 7) % (VOCAB - 1) for i in range(length)]


class Gate:
    name = "gate"

    def __init__(self):
        self.open = set()
        self.asked = []

    def may_start(self, request):
        self.asked.append(request.request_id)
        return request.request_id in self.open


class Keeper:
    name = "keeper"

    def finished(self, request):
        return request.num_tokens > 10


class Mail:
    name = "mail"

    def __init__(self):
        self.got = []

    def planned(self, plan):
        return b"step %d" % plan.step if plan.new else None

    def result(self, payload):
        self.got.append(payload)


class Broken:
    name = "broken"

    def may_start(self, request):
        if request.request_id == "a":
            raise ValueError("no such grammar")
        return True


class Drafts:
    name = "drafts"

    def __init__(self, count=3):
        self.count = count

    def extra_tokens(self, request):
        return self.count


def test_a_parked_request_lets_others_pass_until_it_is_woken():
    gate = Gate()
    gate.open.add("b")
    engine = Engine(extensions=[gate], max_num_seqs=1)
    engine.add("a", prompt(5), 3)
    engine.add("b", prompt(5, 2), 3)
    engine.run()
    assert list(engine.finished) == ["b"]
    assert (engine.scheduler.num_parked, engine.scheduler.num_waiting) == (1, 1)
    gate.open.add("a")
    engine.scheduler.wake("a")
    engine.scheduler.wake("nobody")
    engine.run()
    assert list(engine.finished) == ["b", "a"]
    engine.check_outputs()


def test_abort_while_parked():
    engine = Engine(extensions=[Gate()])
    engine.add("a", prompt(5), 3)
    engine.run()
    assert engine.abort("a").finish_reason == "abort"
    engine.scheduler.wake("a")
    engine.check_idle()


def test_kept_blocks_are_held_until_they_are_released():
    engine = Engine(extensions=[Keeper()])
    engine.add("short", prompt(5), 2)
    engine.add("long", prompt(9, 2), 4, eos_token_ids=())
    engine.run()
    assert len(engine.finished) == 2
    assert engine.scheduler.kv_usage > 0
    assert engine.abort("long") is None
    assert not engine.add("long", prompt(3))
    engine.scheduler.check()
    engine.scheduler.release("long")
    engine.scheduler.release("long")
    engine.scheduler.check()
    engine.check_idle()


def test_two_keepers_release_one_after_the_other():
    other = Keeper()
    other.name = "other"
    engine = Engine(extensions=[Keeper(), other])
    engine.add("long", prompt(9), 4, eos_token_ids=())
    engine.run()
    engine.scheduler.release("long")
    assert engine.scheduler.kv_usage > 0
    engine.scheduler.release("long")
    engine.check_idle()


def test_payloads_travel_with_plan_and_result():
    mail = Mail()
    engine = Engine(extensions=[mail])
    engine.add("a", prompt(5), 2, eos_token_ids=())
    plan = engine.scheduler.schedule()
    assert plan.payloads == {"mail": b"step 1"}
    engine.scheduler.update(StepResult(1, [0], [5], payloads={"mail": b"back", "unknown": b""}))
    assert mail.got == [b"back"]
    assert engine.scheduler.schedule().payloads == {}


def test_an_extension_that_raises_fails_that_request_and_is_named():
    engine = Engine(extensions=[Broken()])
    engine.add("a", prompt(5), 3)
    engine.add("b", prompt(5, 2), 3)
    engine.run()
    assert engine.finished["a"].error == "scheduler extension 'broken' failed in may_start: ValueError: no such grammar"
    assert engine.finished["b"].finish_reason in ("stop", "length")


def test_the_last_failure_while_planning_is_handed_out_without_a_step():
    engine = Engine(extensions=[Broken()])
    engine.add("a", prompt(5), 3)
    assert engine.schedule() is None
    assert engine.scheduler.has_work
    assert [delta.finish_reason for delta in engine.scheduler.take_failed()] == ["error"]
    assert not engine.scheduler.has_work


def test_an_extension_that_raises_at_the_end_is_named_and_leaks_nothing():
    keeper = Keeper()
    keeper.finished = lambda request: 1 / 0
    engine = Engine(extensions=[keeper])
    engine.add("a", prompt(5), 3)
    engine.step()
    with pytest.raises(PluginError, match="'keeper' failed in"):
        engine.scheduler.abort("a")
    engine.scheduler.check()


class Remote:
    name = "remote"

    def cached_tokens(self, request, num_local):
        return 10


def test_tokens_of_a_remote_cache_are_not_computed():
    engine = Engine("hybrid", extensions=[Remote()], budget=64)
    engine.add("a", prompt(20), 2)
    plan = engine.scheduler.schedule()
    assert (plan.starts, plan.counts) == ([10], [10])
    assert [len(table) for table in plan.new[0].blocks] == [5, 5, 5]
    assert plan.new[0].blocks[1][0] == 0  # outside the window
    engine.scheduler.update(StepResult(1, [0], [5]))
    engine.scheduler.check()
    assert engine.scheduler.abort("a").num_cached_tokens == 10


def drafted(accepted, *, depth=1, max_tokens=20, num_blocks=64, requests=1):
    """Run requests of which every step accepts the next of `accepted` drafts; tokens count upwards."""
    engine = Engine(extensions=[Drafts()], depth=depth, num_blocks=num_blocks, max_model_len=48)
    scheduler, outputs, rows, step = engine.scheduler, {}, {}, 0
    for i in range(requests):
        engine.add(f"r{i}", prompt(6, i), max_tokens, eos_token_ids=())
        outputs[f"r{i}"] = []
    flights = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        scheduler.check()
        if plan is not None:
            rows |= {new.row: new.request_id for new in plan.new}
            flights.append((plan, dict(rows)))
            continue
        plan, names = flights.pop(0)
        tokens, counts = [], []
        for index in plan.samples:
            name = names[plan.rows[index]]
            step += 1
            known = len(prompt(6)) + len(outputs[name])
            extra = plan.starts[index] + plan.counts[index] - known
            assert plan.starts[index] <= known - 1
            assert known + extra + 1 <= 6 + max_tokens
            count = 1 + min(extra, accepted[step % len(accepted)])
            counts.append(count)
            tokens += [1 + (len(outputs[name]) + j) % 20 for j in range(count)]
        sampled = [plan.rows[i] for i in plan.samples]
        for delta in scheduler.update(StepResult(plan.step, sampled, tokens, accepted=counts)):
            outputs[delta.request_id] += delta.token_ids
        scheduler.check()
    engine.check_idle()
    return outputs, scheduler


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("accepted", [[0], [3], [0, 1, 2, 3], [2, 0]])
def test_accepted_counts_correct_the_optimistic_ones(depth, accepted):
    outputs, _ = drafted(accepted, depth=depth, requests=3)
    assert set(map(tuple, outputs.values())) == {tuple(1 + i % 20 for i in range(20))}


def test_drafts_and_preemption_together():
    outputs, scheduler = drafted([0, 1, 3], depth=2, requests=4, max_tokens=25, num_blocks=12)
    assert scheduler.num_preemptions > 0
    assert set(map(tuple, outputs.values())) == {tuple(1 + i % 20 for i in range(25))}


def test_more_tokens_than_were_planned_fail_the_request():
    engine = Engine()
    engine.add("a", prompt(5), 9)
    engine.scheduler.schedule()
    (delta,) = engine.scheduler.update(StepResult(1, [0], [5, 6], accepted=[2]))
    assert "returned 2 tokens where 1 to 1 were planned" in delta.error
