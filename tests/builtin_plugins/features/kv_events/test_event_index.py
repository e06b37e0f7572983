"""KV events alone reproduce the prefix cache's keys, in random runs."""

import random
import runpy
from pathlib import Path

import msgspec
import pytest

from builtin_plugins.features.kv_events.event_source import EventSource
from builtin_plugins.features.kv_events.events import DEVICE, EventBatch
from core.api import InvalidRequest
from tests.core.scheduler.fake_connector import Connector, run, wake
from tests.core.scheduler.fake_worker import VOCAB, Engine

EXAMPLE = Path(__file__).parents[4] / "examples" / "clients" / "kv_events.py"
Index = runpy.run_path(str(EXAMPLE))["Index"]
block_keys = runpy.run_path(str(EXAMPLE))["block_keys"]
BASES = [[1 + (base * 31 + i * (5 + base)) % (VOCAB - 1) for i in range(48)] for base in range(4)]


class Sender:
    """Buffers sent changes until they are read, as bytes."""

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
        data = msgspec.msgpack.encode(EventBatch(0.0, self.write(changes)))
        return msgspec.msgpack.decode(data)[1]


def held(kv):
    """Return the keys in the prefix cache, as the events report them."""
    groups = enumerate(kv.layout.groups)
    return {
        (DEVICE, index, key)
        for index, group in groups
        for key in kv.pools[group.pool].cached_blocks(index)
    }


def live(layers, num_steps, seed):
    """Run random actions; compare the index after each read."""
    dice = random.Random(seed)
    sender = Sender()
    connector = Connector()
    engine = Engine(
        layers,
        depth=dice.randint(1, 3),
        num_blocks=40,
        budget=16,
        extensions=[connector, EventSource(sender, as_bytes=True)],
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
            engine.worker.corrupt[dice.choice(names)] = dice.randint(0, 40)
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
def test_events_reproduce_the_cached_keys(layers):
    live(layers, 400, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layers", ["full", "hybrid", "three", "sizes", "windowed", "states", "stateful"]
)
def test_events_reproduce_the_cached_keys_over_ten_thousand_steps(layers):
    live(layers, 10_000, seed=2)


def test_events_have_the_parents_and_tokens_of_the_chain():
    sender = Sender()
    engine = Engine(
        "hybrid", block_size=4, num_blocks=64, extensions=[EventSource(sender, as_bytes=True)]
    )
    prompt = BASES[0][:19]
    engine.add("r", prompt, 9, eos_token_ids=())
    engine.run()
    known = engine.tokens("r")
    stored = [event for event in sender.read() if event[0] == "BlockStored"]
    groups = {event[9] for event in stored}
    assert groups == set(range(len(engine.layout.groups)))
    for group in groups:
        tokens_of = {}
        parents = {}
        for _, hashes, parent, tokens, *facts in (event for event in stored if event[9] == group):
            own = [group, *(["full_attention", None], ["sliding_window", 6])[group > 0]]
            assert facts == [4, None, DEVICE, None, None, *own]
            for index, block in enumerate(hashes):
                tokens_of[block] = tokens[4 * index : 4 * index + 4]
                parents[block] = parent
                parent = block
        last = next(block for block in tokens_of if block not in parents.values())
        found = []
        while last is not None:
            found = tokens_of[last] + found
            last = parents[last]
        assert (
            found == known[:24]
        )  # the last token was never computed, so the last block is not full


@pytest.mark.parametrize("layers", ["full", "hybrid"])
@pytest.mark.parametrize("salt", ["", "tenant"])
def test_keys_made_outside_are_those_of_the_events(layers, salt):
    sender = Sender()
    source = EventSource(sender, as_bytes=True)
    engine = Engine(layers, block_size=4, num_blocks=64, extensions=[source])
    prompt = BASES[1][:21]
    engine.add("r", prompt, 1, eos_token_ids=(), cache_salt=salt)
    engine.run()
    index = Index()
    index.apply(sender.read())
    chain = msgspec.json.decode(source.call("chain", b""))
    keys = block_keys(prompt, **chain, salt=salt)
    assert len(keys) == 21 // chain["link_tokens"]
    published = {key for _, group, key in index.parents if group == 0}
    assert published == set(keys)
    assert published.isdisjoint(block_keys(prompt, **chain, salt="another"))
    assert published.isdisjoint(block_keys([*prompt[1:], 1], **chain, salt=salt))


def test_another_call_is_refused():
    source = EventSource(Sender(), as_bytes=True)
    with pytest.raises(InvalidRequest, match=r"got kv_events\.keys; expected kv_events\.chain"):
        source.call("keys", b"")
