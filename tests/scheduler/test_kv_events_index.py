"""Whoever reads nothing but events knows the keys of the prefix cache exactly, at random times of
random lives.
"""

import random
import runpy
from pathlib import Path

import msgspec
import pytest
from fake_connector import Connector, run, wake
from fake_worker import VOCAB, Engine

from builtin_plugins.features.kv_events.events import DEVICE, EventBatch
from builtin_plugins.features.kv_events.watching import Watching

EXAMPLE = Path(__file__).parents[2] / "examples" / "clients" / "kv_events.py"
Index = runpy.run_path(str(EXAMPLE))["Index"]
BASES = [[1 + (base * 31 + i * (5 + base)) % (VOCAB - 1) for i in range(48)] for base in range(4)]


class Sender:
    """Keeps what is sent until somebody reads it, as bytes."""

    def __init__(self):
        self.waiting = []

    def start(self, write):
        self.write = write

    def send(self, change):
        self.waiting.append(change)

    def close(self):
        pass

    def read(self):
        changes = self.waiting
        self.waiting = []
        return msgspec.msgpack.decode(msgspec.msgpack.encode(EventBatch(0.0, self.write(changes))))[
            1
        ]


def held(kv):
    """Return the keys that can be found, as whole ones are told."""
    groups = enumerate(kv.layout.groups)
    return {
        (DEVICE, index, key) for index, group in groups for key in kv.pools[group.pool].find(index)
    }


def live(layers, num_steps, seed):
    """Do random things and compare after each, reading after some of them only."""
    dice = random.Random(seed)
    sender = Sender()
    connector = Connector()
    engine = Engine(
        layers,
        depth=dice.randint(1, 3),
        num_blocks=40,
        budget=16,
        extensions=[connector, Watching(sender, as_bytes=True)],
    )
    index = Index()
    seen = 0
    kinds = set()
    for step in range(num_steps):
        action = dice.random()
        names = list(engine.requests)[-8:]
        if action < 0.2 and engine.scheduler.num_waiting < 8:
            prompt = [*dice.choice(BASES)[: dice.randint(0, 40)], dice.randint(1, VOCAB - 1)]
            engine.add(
                f"r{step}", prompt, dice.randint(1, 12), cache_salt=dice.choice(["", "", "x"])
            )
        elif action < 0.23 and names:
            engine.abort(dice.choice(names))
        elif action < 0.25 and names:
            engine.recompute(dice.choice(names), dice.randint(0, 40))
        elif action < 0.27 and names:
            engine.worker.spoil[dice.choice(names)] = dice.randint(0, 40)
        elif action < 0.275:
            engine.fail_steps()
        elif action < 0.285:
            engine.scheduler.reset_prefix_cache()
        elif action < 0.4 and connector.held:
            wake(engine, connector, dice.choice(list(connector.held)))
        elif action < 0.4 and engine.scheduler._life.parked:
            wake(engine, connector, dice.choice(list(engine.scheduler._life.parked)))
        else:
            engine.step()
        if dice.random() < 0.5:
            events = sender.read()
            kinds.update(event[0] for event in events)
            index.apply(events)
            assert set(index.parents) == held(engine.kv), f"after step {step}"
            seen += 1
    run(engine, connector)
    index.apply(sender.read())
    assert set(index.parents) == held(engine.kv)
    assert kinds == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
    assert seen > num_steps // 3


@pytest.mark.parametrize("layers", ["full", "hybrid", "three", "stateful"])
def test_events_alone_tell_the_keys_exactly(layers):
    live(layers, 400, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layers", ["full", "hybrid", "three", "sizes", "windowed", "states", "stateful"]
)
def test_events_alone_tell_the_keys_exactly_over_ten_thousand_steps(layers):
    live(layers, 10_000, seed=2)


def test_parents_and_tokens_are_those_of_the_chain():
    sender = Sender()
    engine = Engine(
        "hybrid", block_size=4, num_blocks=64, extensions=[Watching(sender, as_bytes=True)]
    )
    prompt = BASES[0][:19]
    engine.add("r", prompt, 9, eos_token_ids=())
    engine.run()
    known = engine.tokens("r")
    stored = [event for event in sender.read() if event[0] == "BlockStored"]
    groups = {event[9] for event in stored}
    assert groups == set(range(len(engine.layout.groups)))
    for group in groups:
        told = {}
        parents = {}
        for _, hashes, parent, tokens, *facts in (event for event in stored if event[9] == group):
            own = [group, *(["full_attention", None], ["sliding_window", 6])[group > 0]]
            assert facts == [4, None, DEVICE, None, None, *own]
            for place, block in enumerate(hashes):
                told[block], parents[block], parent = (
                    tokens[4 * place : 4 * place + 4],
                    parent,
                    block,
                )
        last = next(block for block in told if block not in parents.values())
        found = []
        while last is not None:
            found = told[last] + found
            last = parents[last]
        assert (
            found == known[:24]
        )  # the last token was never computed, so the last block is not full
