"""Scheduler and KV manager under random arrivals, ends, budgets, block counts and steps in flight.

After every call all invariants are checked: `Scheduler.check` counts every block and row, and the
fake worker reads back what each row sees and rejects blocks that a step in flight still uses. At
the end every request has exactly its own tokens, nothing is held, and the journal replays every
plan. In half of the runs a connector parks requests and loads external keys, some of them wrong
from a random position on. Cached blocks of any request are corrupted at random, too.
"""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from builtin_plugins.scheduling_policies.priority import Priority
from core.testing.replay import replay
from tests.core.scheduler.fake_connector import Connector, run, wake
from tests.core.scheduler.fake_worker import (
    LAYERS,
    VOCAB,
    Engine,
    expected_output,
    make_request,
)

BASES = [[1 + (base * 31 + i * (5 + base)) % (VOCAB - 1) for i in range(48)] for base in range(3)]
"""Prompts share prefixes of these."""


class Drafts:
    """Requests draft tokens for some rows; the fake worker accepts some of them."""

    name = "drafts"

    def __init__(self, max_drafts):
        self.max_drafts = max_drafts

    def num_draft_tokens(self, rows):
        return (rows.rows + rows.num_tokens[rows.rows]) % (self.max_drafts + 1)


class Engines(RuleBasedStateMachine):
    """One engine of random shape per run."""

    @initialize(
        layers=st.sampled_from(sorted(LAYERS)),
        depth=st.integers(1, 3),
        num_blocks=st.sampled_from([10, 16, 24, 48, 400]),
        block_size=st.sampled_from([1, 3, 4]),
        budget=st.sampled_from([1, 4, 7, 16, 64]),
        max_num_seqs=st.integers(1, 6),
        chunked=st.booleans(),
        threshold=st.sampled_from([0, 3]),
        mixed=st.sampled_from([0, 2]),
        caching=st.sampled_from([True, True, False]),
        priorities=st.booleans(),
        connected=st.booleans(),
        num_draft_tokens=st.sampled_from([None, None, 1, 4]),
    )
    def start(
        self,
        layers,
        depth,
        num_blocks,
        block_size,
        budget,
        max_num_seqs,
        chunked,
        threshold,
        mixed,
        caching,
        priorities,
        connected,
        num_draft_tokens,
    ):
        self.folder = Path(tempfile.mkdtemp())
        self.connector = Connector() if connected else Connector(wait=0, reserve=0, remote=0)
        self.drafts = [] if num_draft_tokens is None else [Drafts(num_draft_tokens)]
        self.engine = Engine(
            layers,
            depth=depth,
            num_blocks=num_blocks,
            block_size=block_size,
            budget=budget,
            max_num_seqs=max_num_seqs,
            chunked_prefill=chunked,
            long_prefill_token_threshold=threshold,
            max_mixed_prefill_tokens=mixed,
            prefix_caching=caching,
            policy=Priority() if priorities else None,
            extensions=[self.connector, *self.drafts],
        )
        self.path = str(self.folder / "journal")
        self.engine.record(self.path)
        self.names = 0

    @rule(
        base=st.integers(0, len(BASES) - 1),
        shared=st.integers(0, 48),
        own=st.lists(st.integers(1, VOCAB - 1), max_size=6),
        max_tokens=st.integers(1, 30),
        salt=st.sampled_from(["", "", "x"]),
        priority=st.integers(0, 2),
        copies=st.integers(1, 3),
        ends=st.booleans(),
        moved=st.sampled_from([0, 0, 0, 1, 9]),
    )
    def add(self, base, shared, own, max_tokens, salt, priority, copies, ends, moved):
        for _ in range(copies):
            self.names += 1
            fields = {"cache_salt": salt, "priority": priority}
            if not ends:
                fields["eos_token_ids"] = ()
            prompt = [*BASES[base][:shared], *own]
            if moved and prompt:
                # Another engine had it, and returned its first tokens.
                alone = make_request("alone", prompt, max_tokens, **fields)
                output = expected_output(alone, self.engine.limits.max_model_len, salt)
                fields["output_token_ids"] = output[: min(moved, len(output) - 1)]
            self.engine.add(f"r{self.names}", prompt, max_tokens, **fields)

    @precondition(lambda self: self.names)
    @rule(which=st.integers(0, 10_000))
    def abort(self, which):
        name = f"r{1 + which % self.names}"
        known = name in self.engine.requests and name not in self.engine.finished
        assert (self.engine.abort(name) is not None) == known

    @rule()
    def schedule(self):
        self.engine.schedule()

    @precondition(lambda self: self.engine.worker.queue)
    @rule()
    def collect(self):
        self.engine.collect()

    @rule(steps=st.integers(1, 8))
    def step(self, steps):
        for _ in range(steps):
            self.engine.step()

    @rule()
    def reset(self):
        free = not any(
            request.lease.capacity for request in self.engine.scheduler._life.live.values()
        )
        assert self.engine.scheduler.reset_prefix_cache() == free

    @precondition(lambda self: self.names)
    @rule(which=st.integers(0, 10_000))
    def fail_one(self, which):
        self.engine.worker.fail[f"r{1 + which % self.names}"] = "failed alone"

    @rule()
    def fail_steps(self):
        self.engine.fail_steps()

    @rule(which=st.integers(0, 10_000))
    def wake(self, which):
        waiting = [*self.connector.held, *self.engine.requests]
        if waiting:
            wake(self.engine, self.connector, waiting[which % len(waiting)])

    @precondition(lambda self: self.names)
    @rule(which=st.integers(0, 10_000), position=st.integers(0, 60))
    def corrupt(self, which, position):
        self.engine.worker.corrupt[f"r{1 + which % self.names}"] = position

    @precondition(lambda self: self.names)
    @rule(which=st.integers(0, 10_000), position=st.integers(0, 60))
    def recompute(self, which, position):
        self.engine.recompute(f"r{1 + which % self.names}", position)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        try:
            self._finish(self.engine)
        finally:
            self.engine.journal.close()
            shutil.rmtree(self.folder)

    def _finish(self, engine):
        run(engine, self.connector)
        engine.check_outputs()
        engine.check_idle()
        assert set(engine.finished) == set(engine.requests), "a request has no end"
        assert engine.scheduler.reset_prefix_cache()
        engine.journal.close()
        odds = self.connector.odds
        again = Connector(wait=odds[0], reserve=odds[1], remote=odds[2], fail=odds[3])
        report = replay(self.path, policy=engine.scheduler.policy, extensions=[again, *self.drafts])
        assert report.identical, report.difference
        assert report.num_plans == len(engine.plans)


SETTINGS = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "print_blob": False,
    "report_multiple_bugs": False,
}

TestEngines = Engines.TestCase
TestEngines.settings = settings(
    max_examples=250, stateful_step_count=40, derandomize=True, **SETTINGS
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestManyEngines(Engines.TestCase):
    settings = settings(max_examples=3000, stateful_step_count=80, **SETTINGS)
