"""Toy extensions in every role: gate, remote cache, drafts, payloads, pinned blocks."""

import pytest

from core.errors import PluginError
from core.step import StepResult
from core.testing.invariants import check_scheduler
from tests.core.scheduler.fake_worker import VOCAB, Engine


def prompt(length, first=1):
    return [1 + (first * 31 + i * 7) % (VOCAB - 1) for i in range(length)]


class Gate:
    name = "gate"

    def __init__(self):
        self.open = set()
        self.calls = []

    def may_start(self, request):
        self.calls.append(request.request_id)
        return request.request_id in self.open


class Pins:
    name = "pins"

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


class Reports:
    name = "reports"

    def finished(self, request):
        request.feature_outputs["reports"] = b"%d tokens" % request.num_tokens
        return False


def test_feature_outputs_reach_the_final_delta():
    engine = Engine(extensions=[Reports()])
    engine.add("a", prompt(5), 3, eos_token_ids=())
    engine.run()
    assert engine.finished["a"].features == {"reports": b"8 tokens"}


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

    def num_draft_tokens(self, rows):
        return [self.count] * len(rows.rows)


def test_parked_request_lets_others_pass_until_woken():
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
    engine.scheduler.wake("unknown")
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


def test_pinned_blocks_are_held_until_release():
    engine = Engine(extensions=[Pins()])
    engine.add("short", prompt(5), 2)
    engine.add("long", prompt(9, 2), 4, eos_token_ids=())
    engine.run()
    assert len(engine.finished) == 2
    assert engine.scheduler.kv.usage > 0
    assert engine.abort("long") is None
    assert not engine.add("long", prompt(3))
    check_scheduler(engine.scheduler)
    engine.scheduler.release("long")
    engine.scheduler.release("long")
    check_scheduler(engine.scheduler)
    engine.check_idle()


def test_pinned_blocks_are_freed_by_the_last_release():
    other = Pins()
    other.name = "other"
    engine = Engine(extensions=[Pins(), other])
    engine.add("long", prompt(9), 4, eos_token_ids=())
    engine.run()
    engine.scheduler.release("long")
    assert engine.scheduler.kv.usage > 0
    engine.scheduler.release("long")
    engine.check_idle()


def test_payloads_travel_with_plan_and_result():
    mail = Mail()
    engine = Engine(extensions=[mail])
    engine.add("a", prompt(5), 2, eos_token_ids=())
    plan = engine.scheduler.schedule()
    assert plan.payloads == {"mail": b"step 1"}
    engine.scheduler.update(StepResult(1, [0], [5], payloads={"mail": [b"back"], "unknown": [b""]}))
    assert mail.got == [b"back"]
    assert engine.scheduler.schedule().payloads == {}


def test_extension_error_fails_its_request_and_names_the_plugin(caplog):
    engine = Engine(extensions=[Broken()])
    engine.add("a", prompt(5), 3)
    engine.add("b", prompt(5, 2), 3)
    engine.run()
    assert (
        engine.finished["a"].error == "plugin 'broken' failed in request 'a'; see the engine log."
    )
    assert (
        "scheduler extension 'broken' failed in may_start: ValueError: no such grammar"
        in caplog.text
    )
    assert engine.finished["b"].finish_reason in ("stop", "length")


def test_planning_failure_is_returned_without_a_step():
    engine = Engine(extensions=[Broken()])
    engine.add("a", prompt(5), 3)
    assert engine.schedule() is None
    assert engine.scheduler.has_work
    assert [delta.finish_reason for delta in engine.scheduler.take_failed()] == ["error"]
    assert not engine.scheduler.has_work


def test_extension_error_in_finished_leaks_nothing():
    pins = Pins()
    pins.finished = lambda request: 1 / 0
    engine = Engine(extensions=[pins])
    engine.add("a", prompt(5), 3)
    engine.step()
    with pytest.raises(PluginError, match="'pins' failed in"):
        engine.scheduler.abort("a")
    check_scheduler(engine.scheduler)


class Remote:
    name = "remote"

    def cached_tokens(self, request, num_local):
        return 10


def test_remotely_cached_tokens_are_not_computed():
    engine = Engine("hybrid", extensions=[Remote()], budget=64)
    engine.add("a", prompt(20), 2)
    plan = engine.scheduler.schedule()
    assert (plan.starts, plan.counts) == ([10], [10])
    assert [len(table) for table in plan.new[0].blocks] == [5, 5, 5]
    assert plan.new[0].blocks[1][0] == 0  # outside the window
    engine.scheduler.update(StepResult(1, [0], [5]))
    check_scheduler(engine.scheduler)
    assert engine.scheduler.abort("a").num_cached_tokens == 10


def run_with_drafts(
    layers="full", *, depth=1, max_tokens=20, requests=3, count=3, extensions=(), **options
):
    """Run requests with draft tokens in every step; the fake worker accepts some."""
    engine = Engine(
        layers, extensions=[Drafts(count), *extensions], depth=depth, max_model_len=48, **options
    )
    for i in range(requests):
        engine.add(f"r{i}", prompt(6, i), max_tokens, eos_token_ids=(0,) if i % 2 else ())
    engine.run()
    engine.check_outputs()
    engine.check_idle()
    return engine


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("layers", ["full", "hybrid", "three", "sizes", "windowed"])
def test_accepted_counts_correct_planned_positions(depth, layers):
    alone = sum(
        len(output) for output in run_with_drafts(layers, depth=depth, count=0).outputs.values()
    )
    engine = run_with_drafts(layers, depth=depth)
    assert sum(len(output) for output in engine.outputs.values()) == alone
    assert engine.worker.num_accepted_drafts > 0
    assert len(engine.plans) < len(run_with_drafts(layers, depth=depth, count=0).plans)


@pytest.mark.parametrize("depth", [2, 3])
def test_draft_tokens_are_planned_while_others_are_in_flight(depth):
    engine = run_with_drafts(depth=depth, requests=1)
    both = [p for p in engine.plans[2:-2] if p.num_draft_tokens]
    assert len(both) > 2, "no draft tokens for a row in flight"


def test_draft_tokens_with_preemption():
    engine = run_with_drafts(depth=2, requests=4, max_tokens=25, num_blocks=12)
    assert engine.scheduler.num_preemptions > 0
    assert engine.worker.num_accepted_drafts > 0


def test_draft_tokens_respect_budget_and_limit():
    engine = run_with_drafts(count=50, budget=9, max_num_seqs=4, requests=4)
    assert max(plan.num_tokens for plan in engine.plans) == 9
    assert any(plan.num_draft_tokens for plan in engine.plans)


@pytest.mark.parametrize("layers", ["states", "stateful"])
def test_draft_tokens_are_limited_by_spare_states(layers):
    engine = Engine(layers, extensions=[Drafts()])
    for i in range(4):
        engine.add(f"r{i}", prompt(6, i), 20, eos_token_ids=())
    engine.run()
    engine.check_outputs()
    assert engine.worker.num_accepted_drafts > 0


def test_no_draft_tokens_without_spare_states():
    engine = Engine("bare states", extensions=[Drafts()])
    engine.add("a", prompt(6), 9, eos_token_ids=())
    engine.run()
    assert not any(plan.num_draft_tokens for plan in engine.plans)


class Limits:
    name = "limits"

    def __init__(self, limits_by_row):
        self.limits_by_row = limits_by_row
        self.seen = []

    def limits(self, rows):
        self.seen.append(
            {rows.request(row).request_id: rows.tokens(row).tolist() for row in rows.rows.tolist()}
        )
        return self.limits_by_row


def test_row_limited_to_zero_skips_the_step():
    limits = Limits({})
    engine = Engine(extensions=[limits])
    for i in range(2):
        engine.add(f"r{i}", prompt(6, i), 9, eos_token_ids=())
    engine.step()
    engine.step()
    assert set(limits.seen[-1]) == {"r0", "r1"}
    assert limits.seen[-1]["r0"] == engine.tokens("r0")[:-1]
    limits.limits_by_row = {0: 0}
    before = {name: len(output) for name, output in engine.outputs.items()}
    for _ in range(3):
        engine.step()
    after = {name: len(output) for name, output in engine.outputs.items()}
    assert sorted(after[name] - before[name] for name in after) == [0, 3]
    limits.limits_by_row = {}
    engine.run()
    assert engine.started == ["r0", "r1"]
    engine.check_outputs()
    engine.check_idle()


def test_skipped_rows_get_draft_tokens_again():
    """While all rows are limited to zero, no plan is made and the decode rows stay."""
    limits = Limits({})
    limits.is_active = lambda: bool(limits.limits_by_row)
    engine = Engine(extensions=[limits, Drafts()])
    engine.add("a", prompt(6), 40, eos_token_ids=())
    for _ in range(3):
        engine.step()
    limits.limits_by_row = {0: 0}
    made = len(engine.plans)
    engine.step()
    assert len(engine.plans) == made
    limits.limits_by_row = {}
    engine.step()
    assert engine.plans[-1].num_draft_tokens == [3]
    engine.run()
    engine.check_outputs()
    engine.check_idle()


def test_methods_are_called_only_while_their_own_extension_is_active():
    """Another extension's activity is no reason to call an idle one."""
    idle = Limits({0: 0})
    idle.name = "idle"
    idle.is_active = lambda: False
    idle.num_draft_tokens = lambda rows: pytest.fail("an idle extension was called")
    engine = Engine(extensions=[idle, Limits({1: 1}), Drafts()])
    engine.add("a", prompt(6), 8, eos_token_ids=())
    for _ in range(3):
        engine.step()
    assert len(engine.outputs["a"]) > 1
    engine.run()
    engine.check_outputs()
    engine.check_idle()


def test_limits_split_a_prompt_into_chunks():
    engine = Engine(extensions=[Limits({0: 3})], budget=16)
    engine.add("a", prompt(20), 2, eos_token_ids=())
    engine.run()
    assert [plan.counts for plan in engine.plans if plan.counts] == [[16], [3]]
    engine.check_outputs()


class Sender:
    """Has a payload without any row to compute."""

    name = "sender"

    def __init__(self):
        self.payloads = []

    def pending(self):
        return bool(self.payloads)

    def planned(self, plan):
        return self.payloads.pop() if self.payloads else None


def test_pending_payload_is_sent_in_a_plan_without_rows():
    sender = Sender()
    engine = Engine(extensions=[sender])
    assert not engine.scheduler.has_work
    sender.payloads.append(b"hello")
    assert engine.scheduler.has_work
    plan = engine.schedule()
    assert (plan.num_tokens, plan.payloads) == (0, {"sender": b"hello"})
    engine.collect()
    assert engine.schedule() is None
    engine.add("a", prompt(5), 3)
    engine.run()
    engine.check_outputs()


def test_call_reaches_the_named_extension():
    class Answers:
        name = "answers"

        def call(self, verb, data):
            return verb.encode() + data

    scheduler = Engine(extensions=[Answers()]).scheduler
    assert scheduler.call("answers", "say", b"!") == b"say!"
    assert scheduler.call("unknown", "say", b"!") is None


def test_too_many_tokens_fail_the_request():
    engine = Engine()
    engine.add("a", prompt(5), 9)
    engine.scheduler.schedule()
    (delta,) = engine.scheduler.update(StepResult(1, [0], [5, 6], accepted=[2]))
    assert "returned 2 tokens where 1 to 1 were planned" in delta.error


def test_close_reaches_extensions_directly_and_through_the_journal(tmp_path):
    class Closes:
        name = "closes"
        times = 0

        def close(self):
            self.times += 1

    closes = Closes()
    engine = Engine(extensions=[closes, Mail()])
    engine.scheduler.close()
    engine.record(str(tmp_path / "journal"))
    engine.scheduler.close()
    assert closes.times == 2


def test_close_runs_all_extensions_and_raises_the_first_error():
    class Closes:
        def __init__(self, name, error=None):
            self.name = name
            self.error = error
            self.times = 0

        def close(self):
            self.times += 1
            if self.error is not None:
                raise self.error

    halves = [
        Closes("one"),
        Closes("two", OSError("disk is gone")),
        Closes("three", ValueError("late")),
        Closes("four"),
    ]
    with pytest.raises(
        PluginError, match=r"'two' failed in close: OSError: disk is gone"
    ) as raised:
        Engine(extensions=halves).scheduler.close()
    assert [half.times for half in halves] == [1, 1, 1, 1]
    (note,) = raised.value.__notes__
    assert "'three' failed in close: ValueError: late" in note


class WholeSpans:
    """Cuts no chunk inside the first eight, next eight, ... tokens of a prompt."""

    name = "whole"

    def prefill_chunk(self, request, start, count):
        if start + count >= request.prompt_len:
            return count
        return (start + count) // 8 * 8 - start


def test_extension_shortens_first_and_later_prefill_chunks():
    engine = Engine(extensions=[WholeSpans()], budget=13)
    engine.add("a", prompt(30), 3, eos_token_ids=())
    engine.run()
    chunks = [plan.counts for plan in engine.plans if plan.counts]
    assert chunks == [[8], [8], [8], [6]]
    engine.check_outputs()
    engine.check_idle()


def test_prompt_without_a_chunk_waits_for_the_next_step():
    engine = Engine(extensions=[WholeSpans()], budget=13)
    engine.add("a", prompt(8), 2, eos_token_ids=())
    engine.add("b", prompt(20, 1), 2, eos_token_ids=())
    engine.step()
    assert engine.started == ["a"]
    engine.run()
    assert engine.started == ["a", "b"]
    engine.check_outputs()
    engine.check_idle()
