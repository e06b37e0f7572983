"""The event publisher: batches, replays and gaps."""

import random
import runpy
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import zmq

from builtin_plugins.features.kv_events.events import (
    AllBlocksCleared,
    BlockRemoved,
    Cleared,
    EventEncoder,
    Removed,
    Stored,
)
from builtin_plugins.features.kv_events.publisher import END, Publisher
from builtin_plugins.features.kv_events.settings import Settings, settings_of
from core.api import ConfigError, EngineConfig
from core.config.sections import ParallelConfig
from core.kv import plan_layout
from core.model_spec.kv import FullAttention, LayerKV
from tests.timeouts import TIMEOUT_S

EXAMPLE = runpy.run_path(str(Path(__file__).parents[4] / "examples" / "clients" / "kv_events.py"))
LAYOUT = plan_layout(
    [LayerKV("a", FullAttention(1, 8, "float32"))],
    block_size=4,
    memory_bytes=0,
    num_blocks=8,
    max_model_len=8,
    max_num_seqs=1,
)
KEYS = [bytes([i]) * 32 for i in range(200)]
LAST = b"\xff" * 32


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(0)


@pytest.fixture
def open_publisher(tmp_path):
    made = []

    def open_it(**fields):
        addresses = {
            "endpoint": f"ipc://{tmp_path}/events",
            "replay_endpoint": f"ipc://{tmp_path}/replay",
        }
        settings = msgspec.convert(
            {"enable_kv_cache_events": True, **addresses, **fields}, Settings
        )
        publisher = Publisher(settings)
        made.append(publisher)
        publisher.start(EventEncoder(LAYOUT, as_bytes=True).events)
        return publisher, settings

    yield open_it
    for publisher in made:
        publisher.close()


def stored(key):
    return Stored("GPU", 0, [key], None, [1, 2, 3, 4])


def replayed(context, settings, since):
    """Return (number, events) of all replayed batches."""
    found = []
    with context.socket(zmq.DEALER) as client:
        client.connect(settings.replay_endpoint)
        client.send_multipart((b"", since.to_bytes(8, "big")))
        while True:
            assert client.poll(TIMEOUT_S * 1000), "no answer"
            _, number, batch = client.recv_multipart()
            if not batch:
                assert number == END
                return found
            found.append((int.from_bytes(number, "big"), msgspec.msgpack.decode(batch)))


def wait_for_batch(publisher):
    """Wait until the queue is empty, so that the next change starts another batch."""
    while publisher._queue:
        time.sleep(0.001)


def wait_for_batches(context, settings, number):
    """Wait for a number of batches, and return them."""
    while len(found := replayed(context, settings, 0)) < number:
        pass
    return found


def test_batch_is_time_events_and_rank(open_publisher, context):
    publisher, settings = open_publisher(block_hashes="int")
    publisher.send(stored(KEYS[1]))
    ((number, (ts, events, rank)),) = wait_for_batches(context, settings, 1)
    assert (number, rank) == (0, 0)
    assert ts > 1.7e9
    tail = [None, 0, "full_attention", None]
    assert events == [["BlockStored", [KEYS[1]], None, [1, 2, 3, 4], 4, None, "GPU", None, *tail]]


def test_batch_names_its_data_parallel_rank(tmp_path, context):
    given = {"endpoint": f"ipc://{tmp_path}/events", "replay_endpoint": f"ipc://{tmp_path}/replay"}
    settings = msgspec.convert({"enable_kv_cache_events": True, **given}, Settings).of_rank(3)
    assert settings.endpoint == f"{given['endpoint']}_dp3"
    publisher = Publisher(settings, 3)
    publisher.start(EventEncoder(LAYOUT, as_bytes=True).events)
    publisher.send(stored(KEYS[1]))
    ((_, (_, _, rank)),) = wait_for_batches(context, settings, 1)
    publisher.close()
    assert rank == 3


def test_block_hashes_are_integers_by_default():
    (event,) = EventEncoder(LAYOUT, as_bytes=False).events(
        [Stored("GPU", 0, [bytes(24) + b"\1" * 8], LAST, [])]
    )
    assert (event.block_hashes, event.parent_block_hash) == ([0x0101010101010101], 2**64 - 1)


def test_changes_are_merged_into_few_events():
    encoder = EventEncoder(LAYOUT, as_bytes=True)
    removed = [Removed("GPU", 0, key) for key in KEYS[:3]]
    assert encoder.events([*removed, Removed("CPU", 0, KEYS[3]), removed[0]]) == [
        BlockRemoved(KEYS[:3], "GPU", 0),
        BlockRemoved([KEYS[3]], "CPU", 0),
        BlockRemoved([KEYS[0]], "GPU", 0),
    ]
    events = encoder.events([stored(KEYS[0]), *removed, Cleared(), stored(KEYS[1])])
    assert [type(event).__name__ for event in events] == ["AllBlocksCleared", "BlockStored"]
    assert events[0] == AllBlocksCleared()


def test_replay_sends_retained_batches_since_a_number(open_publisher, context):
    publisher, settings = open_publisher(buffer_steps=3)
    for key in KEYS[:6]:
        publisher.send(stored(key))
        wait_for_batch(publisher)
    numbers = [number for number, _ in replayed(context, settings, 0)]
    assert len(numbers) <= 3
    assert [number for number, _ in replayed(context, settings, numbers[-1])] == numbers[-1:]
    assert replayed(context, settings, numbers[-1] + 1) == []


def test_malformed_replay_request_is_ignored(open_publisher, context):
    publisher, settings = open_publisher()
    with context.socket(zmq.DEALER) as client:
        client.connect(settings.replay_endpoint)
        for frames in ([b""], [b"", b"short"], [b"x", bytes(8)], [b"", bytes(8), b""], [bytes(8)]):
            client.send_multipart(frames)
        publisher.send(stored(KEYS[0]))
        assert len(wait_for_batches(context, settings, 1)) == 1
        assert not client.poll(0)


def test_lost_changes_leave_a_sequence_gap(open_publisher, context, caplog):
    publisher, settings = open_publisher(max_queue_size=2)
    is_encoding = threading.Event()
    may_continue = threading.Event()
    to_events = publisher._to_events

    def slowly(changes):
        is_encoding.set()
        assert may_continue.wait(TIMEOUT_S)
        return to_events(changes)

    publisher._to_events = slowly
    publisher.send(stored(KEYS[0]))
    assert is_encoding.wait(TIMEOUT_S)
    for key in KEYS[1:5]:
        publisher.send(stored(key))
    may_continue.set()
    wait_for_batches(context, settings, 2)
    publisher.send(stored(KEYS[6]))
    numbers = [number for number, _ in wait_for_batches(context, settings, 3)]
    assert sorted(set(range(4)) - set(numbers)) in ([1], [2])
    assert "max_queue_size" in caplog.text


def test_close_sends_queued_changes(open_publisher, context):
    publisher, settings = open_publisher()
    index = EXAMPLE["Index"]()
    done = threading.Event()

    def listen():
        for events in EXAMPLE["follow"](
            context, settings.endpoint, settings.replay_endpoint, "", 1000 * TIMEOUT_S
        ):
            index.apply(events)
            if ("GPU", 0, LAST) in index.parents:
                done.set()
                return

    thread = threading.Thread(target=listen)
    thread.start()
    while not index.parents:  # until the subscriber is connected
        publisher.send(stored(KEYS[0]))
        wait_for_batch(publisher)
    publisher.send(stored(LAST))
    publisher.close()
    publisher.close()
    assert done.wait(TIMEOUT_S)
    thread.join()


def test_replay_restores_missed_batches(open_publisher, context, tmp_path):
    publisher, settings = open_publisher()
    lossy = f"ipc://{tmp_path}/lossy"
    index = EXAMPLE["Index"]()
    held = set()
    dice = random.Random(3)
    lost = []
    done = threading.Event()
    stop_relay = threading.Event()

    def relay():
        """Forward a third of the messages, and the last."""
        losses = random.Random(4)
        source = context.socket(zmq.SUB)
        sink = context.socket(zmq.PUB)
        source.subscribe(b"")
        source.connect(settings.endpoint)
        sink.bind(lossy)
        while not stop_relay.is_set():
            if source.poll(10):
                message = source.recv_multipart()
                if LAST in message[2] or losses.random() < 1 / 3:
                    sink.send_multipart(message)
                else:
                    lost.append(message)
        source.close(0)
        sink.close(0)

    def listen():
        for events in EXAMPLE["follow"](
            context, lossy, settings.replay_endpoint, "", 1000 * TIMEOUT_S
        ):
            index.apply(events)
            if done.is_set():
                return

    threads = [threading.Thread(target=relay), threading.Thread(target=listen)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        key = dice.choice(KEYS)
        if dice.random() < 0.02:
            held.clear()
            publisher.send(Cleared())
        elif key in held:
            held.remove(key)
            publisher.send(Removed("GPU", 0, key))
        else:
            held.add(key)
            publisher.send(stored(key))
        wait_for_batch(publisher)
    while ("GPU", 0, LAST) not in index.parents:  # until the subscriber is connected
        publisher.send(stored(LAST))
        wait_for_batch(publisher)
    assert {key for _, _, key in index.parents} == held | {LAST}
    assert lost, "nothing was missed"
    done.set()
    while threads[1].is_alive():  # it checks `done` with each message
        publisher.send(stored(LAST))
        wait_for_batch(publisher)
    stop_relay.set()
    for thread in threads:
        thread.join()


def test_endpoint_in_use_is_rejected(open_publisher):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            ConfigError,
            match=f"--kv-events-config.replay_endpoint {address}: .*choose another address",
        ):
            open_publisher(replay_endpoint=address)


def config(given):
    return replace(EngineConfig(), options={"kv_events_config": given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"endpont": "x"}, "no 'endpont'; did you mean 'endpoint'"),
        ({"hwm": 0}, "hwm"),
        ({"publisher": "kafka"}, "publisher"),
        (
            {"enable_kv_cache_events": True, "endpoint": "inproc://x"},
            "endpoint 'inproc://x' must begin with tcp://",
        ),
        ({"enable_kv_cache_events": True, "replay_endpoint": "x"}, "replay_endpoint 'x'"),
        ({"endpoint": "tcp://*:1"}, "endpoint: got 'tcp://.*:1'; it has no effect without"),
        ({"topic": "kv", "enable_kv_cache_events": False}, "topic: got 'kv'; it has no effect"),
    ],
)
def test_invalid_kv_events_config_is_rejected(given, message):
    with pytest.raises(ConfigError, match=message):
        settings_of(config(given))


def of_size(size, **addresses):
    parallel = ParallelConfig(data_parallel_size=size)
    options = {"kv_events_config": {"enable_kv_cache_events": True, **addresses}}
    return settings_of(EngineConfig(parallel=parallel, options=options))


@pytest.mark.parametrize(
    ("endpoint", "of_rank_2"),
    [
        ("tcp://*:5557", "tcp://*:5559"),
        ("tcp://[::]:5557", "tcp://[::]:5559"),
        ("tcp://router:1", "tcp://router:3"),
        ("ipc:///run/events", "ipc:///run/events_dp2"),
    ],
)
def test_each_data_parallel_rank_has_an_endpoint_of_its_own(endpoint, of_rank_2):
    settings = of_size(3, endpoint=endpoint)
    assert settings.of_rank(0) == settings
    assert settings.of_rank(2).endpoint == of_rank_2
    assert settings.of_rank(2).replay_endpoint is None
    replay = of_size(3, endpoint="tcp://*:7000", replay_endpoint=endpoint)
    assert replay.of_rank(2).replay_endpoint == of_rank_2


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        ({"endpoint": "tcp://*:0"}, r"endpoint: got 'tcp://\*:0'; expected a port of 1 to 65533"),
        ({"endpoint": "tcp://*:65534"}, "expected a port of 1 to 65533"),
        ({"replay_endpoint": "tcp://*"}, r"replay_endpoint: got 'tcp://\*'; expected a port"),
        ({"replay_endpoint": "tcp://*:5558"}, "replay_endpoint: got port 5558; expected one at "),
        ({"replay_endpoint": "tcp://*:5555"}, r"at least 3 away from that of endpoint \(5557\)"),
    ],
)
def test_ports_that_data_parallel_ranks_would_share_are_refused(addresses, message):
    with pytest.raises(ConfigError, match=message):
        of_size(3, **addresses)
    assert of_size(1, **addresses) is not None


def test_events_are_off_by_default():
    for given in (
        None,
        {},
        {"publisher": "zmq"},
        {"enable_kv_cache_events": True, "publisher": "null"},
    ):
        assert settings_of(config(given)) is None
