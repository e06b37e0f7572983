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


class Reports:
    name = "reports"

    def finished(self, request):
        request.news["reports"] = b"%d tokens" % request.num_tokens
        return False


def test_what_an_extension_says_at_the_end_reaches_the_edge():
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

    def guesses(self, rows):
        return [self.count] * len(rows.rows)


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
    engine.scheduler.update(StepResult(1, [0], [5], payloads={"mail": [b"back"], "unknown": [b""]}))
    assert mail.got == [b"back"]
    assert engine.scheduler.schedule().payloads == {}


def test_an_extension_that_raises_fails_that_request_and_is_named(caplog):
    engine = Engine(extensions=[Broken()])
    engine.add("a", prompt(5), 3)
    engine.add("b", prompt(5, 2), 3)
    engine.run()
    assert (
        engine.finished["a"].error
        == "plugin 'broken' failed in request 'a'; the engine's log says more."
    )
    assert (
        "scheduler extension 'broken' failed in may_start: ValueError: no such grammar"
        in caplog.text
    )
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


def guessed(
    layers="full", *, depth=1, max_tokens=20, requests=3, count=3, extensions=(), **options
):
    """Run requests whose every step guesses; the fake worker finds some of them right."""
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
def test_accepted_counts_correct_the_optimistic_ones(depth, layers):
    alone = sum(len(output) for output in guessed(layers, depth=depth, count=0).outputs.values())
    engine = guessed(layers, depth=depth)
    assert sum(len(output) for output in engine.outputs.values()) == alone
    assert engine.worker.num_guessed > 0
    assert len(engine.plans) < len(guessed(layers, depth=depth, count=0).plans)


@pytest.mark.parametrize("depth", [2, 3])
def test_guesses_are_made_while_others_are_in_flight(depth):
    engine = guessed(depth=depth, requests=1)
    both = [p for p in engine.plans[2:-2] if p.guesses]
    assert len(both) > 2, "a row in flight is not guessed for"


def test_guesses_and_preemption_together():
    engine = guessed(depth=2, requests=4, max_tokens=25, num_blocks=12)
    assert engine.scheduler.num_preemptions > 0
    assert engine.worker.num_guessed > 0


def test_guesses_keep_to_the_budget_and_to_the_end():
    engine = guessed(count=50, budget=9, max_num_seqs=4, requests=4)
    assert max(plan.num_tokens for plan in engine.plans) == 9
    assert any(plan.guesses for plan in engine.plans)


@pytest.mark.parametrize("layers", ["states", "stateful"])
def test_as_much_is_guessed_as_states_can_be_taken_back_for(layers):
    engine = Engine(layers, extensions=[Drafts()])
    for i in range(4):
        engine.add(f"r{i}", prompt(6, i), 20, eos_token_ids=())
    engine.run()
    engine.check_outputs()
    assert engine.worker.num_guessed > 0


def test_states_without_spare_ones_are_not_guessed_for():
    engine = Engine("bare states", extensions=[Drafts()])
    engine.add("a", prompt(6), 9, eos_token_ids=())
    engine.run()
    assert not any(plan.guesses for plan in engine.plans)


class Asked:
    name = "asked"

    def extra_tokens(self, request):
        return 2


def test_the_older_way_to_ask_for_tokens_still_works():
    with pytest.warns(DeprecationWarning, match="write guesses"):
        engine = Engine(extensions=[Asked()])
    engine.add("a", prompt(6), 20, eos_token_ids=())
    engine.run()
    engine.check_outputs()
    assert engine.worker.num_guessed > 0


class Limits:
    name = "limits"

    def __init__(self, most):
        self.most = most
        self.seen = []

    def limits(self, rows):
        self.seen.append(
            {rows.request(row).request_id: rows.tokens(row).tolist() for row in rows.rows.tolist()}
        )
        return self.most


def test_a_row_that_is_limited_to_nothing_sits_the_step_out_and_keeps_its_place():
    limits = Limits({})
    engine = Engine(extensions=[limits])
    for i in range(2):
        engine.add(f"r{i}", prompt(6, i), 9, eos_token_ids=())
    engine.step()
    engine.step()
    assert set(limits.seen[-1]) == {"r0", "r1"}
    assert limits.seen[-1]["r0"] == engine.tokens("r0")[:-1]
    limits.most = {0: 0}
    before = {name: len(output) for name, output in engine.outputs.items()}
    for _ in range(3):
        engine.step()
    after = {name: len(output) for name, output in engine.outputs.items()}
    assert sorted(after[name] - before[name] for name in after) == [0, 3]
    limits.most = {}
    engine.run()
    assert engine.started == ["r0", "r1"]
    engine.check_outputs()
    engine.check_idle()


def test_rows_that_sat_out_are_guessed_for_again():
    """While all of them sit out there is no plan, and what the next one needs is as it was."""
    limits = Limits({})
    limits.steers = lambda: bool(limits.most)
    engine = Engine(extensions=[limits, Drafts()])
    engine.add("a", prompt(6), 40, eos_token_ids=())
    for _ in range(3):
        engine.step()
    limits.most = {0: 0}
    made = len(engine.plans)
    engine.step()
    assert len(engine.plans) == made
    limits.most = {}
    engine.step()
    assert engine.plans[-1].guesses == [3]
    engine.run()
    engine.check_outputs()
    engine.check_idle()


def test_a_prompt_is_computed_in_pieces_where_it_is_limited():
    engine = Engine(extensions=[Limits({0: 3})], budget=16)
    engine.add("a", prompt(20), 2, eos_token_ids=())
    engine.run()
    assert [plan.counts for plan in engine.plans if plan.counts] == [[16], [3]]
    engine.check_outputs()


class Postman:
    """Has something to say although nobody computes."""

    name = "postman"

    def __init__(self):
        self.letters = []

    def pending(self):
        return bool(self.letters)

    def planned(self, plan):
        return self.letters.pop() if self.letters else None


def test_a_plan_without_rows_carries_what_an_extension_has_to_say():
    postman = Postman()
    engine = Engine(extensions=[postman])
    assert not engine.scheduler.has_work
    postman.letters.append(b"hello")
    assert engine.scheduler.has_work
    plan = engine.schedule()
    assert (plan.num_tokens, plan.payloads) == (0, {"postman": b"hello"})
    engine.collect()
    assert engine.schedule() is None
    engine.add("a", prompt(5), 3)
    engine.run()
    engine.check_outputs()


def test_calls_are_answered_by_the_extension_they_name():
    class Answers:
        name = "answers"

        def call(self, verb, data):
            return verb.encode() + data

    scheduler = Engine(extensions=[Answers()]).scheduler
    assert scheduler.call("answers", "say", b"!") == b"say!"
    assert scheduler.call("nobody", "say", b"!") is None


def test_more_tokens_than_were_planned_fail_the_request():
    engine = Engine()
    engine.add("a", prompt(5), 9)
    engine.scheduler.schedule()
    (delta,) = engine.scheduler.update(StepResult(1, [0], [5, 6], accepted=[2]))
    assert "returned 2 tokens where 1 to 1 were planned" in delta.error


def test_an_extension_ends_what_it_has_with_the_scheduler_and_with_its_journal(tmp_path):
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


def test_all_extensions_are_closed_and_the_first_error_is_told():
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
    with pytest.raises(PluginError, match=r"'two' failed in close: OSError: disk is gone") as told:
        Engine(extensions=halves).scheduler.close()
    assert [half.times for half in halves] == [1, 1, 1, 1]
    (note,) = told.value.__notes__
    assert "'three' failed in close: ValueError: late" in note
