"""The broker, between API servers and a client that a test holds."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from builtin_plugins.clients.api import reading_calls
from builtin_plugins.clients.broker import sinks
from builtin_plugins.clients.broker.broker import ABORT, OPEN_IDS, EngineBroker
from builtin_plugins.clients.broker.messages import FeatureCall, Observed, Status
from builtin_plugins.clients.broker.open_requests import Session
from builtin_plugins.clients.broker.sinks import ForwardingSink, forward_shared
from builtin_plugins.clients.process.messages import Abort, Add, Answer, Outputs, Started
from core.api import EngineConfig
from core.api.execution import EngineRequest, RequestDelta, StepOutputs
from core.api.serving import EngineStatus
from core.api.telemetry import RequestStats, StepStats, TokenStats
from core.types import SamplingParams


class FakeClient:
    """A client that records its calls."""

    def __init__(self, config: Any, registry: Any, listener: Any) -> None:
        self.listener = listener
        self.added: dict[str, Future[Any]] = {}
        self.aborted: list[str] = []
        self.called: list[tuple[str, bytes]] = []

    def add(self, requests: Any, *, resumed: bool = False) -> Future[Any]:
        future: Future[Any] = Future()
        self.added[requests[0].request_id] = future
        return future

    def abort(self, ids: list[str]) -> None:
        self.aborted += ids

    def call(self, name: str, data: bytes) -> Future[Any]:
        self.called.append((name, data))
        return Future()

    def status(self) -> EngineStatus:
        return EngineStatus("ready")


class Registry:
    """Gives the broker the fake client, and one sink."""

    def __init__(self, sink: Any = None) -> None:
        self._sink = sink
        self._shared: dict[str, Any] = {}

    def shared(self, name: str, make: Any) -> Any:
        return self._shared.setdefault(name, make())

    def entries(self, kind: str) -> list[Any]:
        return [self._sink] if self._sink else []

    def choose(self, kind: str, facts: Any) -> Any:
        return None

    def load(self, registered: Any) -> Any:
        return FakeClient


def request(name: str) -> EngineRequest:
    return EngineRequest(
        request_id=name, prompt_token_ids=[1], sampling=SamplingParams(), seed=0, max_tokens=9
    )


class Server:
    """An API server: its session, and what it was sent."""

    def __init__(self, broker: EngineBroker) -> None:
        self.broker = broker
        self.sent: list[Any] = []
        self.session: Session = broker.open(self.sent.append)

    def send(self, message: Any) -> None:
        self.broker.receive(self.session, message)

    def add(self, *names: str) -> None:
        self.send(Add(1, [request(name) for name in names]))

    def of(self, kind: type) -> list[Any]:
        return [each for each in self.sent if isinstance(each, kind)]


@pytest.fixture
def broker() -> EngineBroker:
    return EngineBroker(EngineConfig(), Registry())  # type: ignore[arg-type]


def client(broker: EngineBroker) -> FakeClient:
    found: Any = broker._client
    return found


def test_outputs_go_to_the_api_server_of_each_request(broker: EngineBroker) -> None:
    one = Server(broker)
    two = Server(broker)
    one.add("a")
    two.add("b#0", "b#1")
    client(broker).listener.started(["a", "b#0"], 0)
    ended = RequestDelta(request_id="b#1", token_ids=[9], finish_reason="stop")
    client(broker).listener.deliver(
        StepOutputs(["b#0", "a", "gone"], [1, 2, 3, 4], [ended], [2, 1, 1])
    )
    assert one.of(Started) == [Started(["a"])]
    assert two.of(Started) == [Started(["b#0"])]
    assert one.of(Outputs) == [Outputs(StepOutputs(["a"], [3], [], [1]))]
    assert two.of(Outputs) == [Outputs(StepOutputs(["b#0"], [1, 2], [ended], [2]))]
    last = RequestDelta(request_id="b#0", finish_reason="stop")
    client(broker).listener.deliver(StepOutputs([], [], [last]))
    assert broker._status().open_requests == 1


def test_end_of_an_api_server_aborts_its_requests_and_no_others(broker: EngineBroker) -> None:
    one = Server(broker)
    two = Server(broker)
    one.add("a")
    one.add("b#0", "b#1")
    two.add("c")
    broker.close(one.session)
    assert sorted(client(broker).aborted) == ["a", "b#0", "b#1"]
    assert client(broker).added["a"].cancelled()  # it may have waited for a restart
    client(broker).listener.deliver(StepOutputs(["a", "c"], [1, 2]))
    assert not one.of(Outputs)
    assert two.of(Outputs) == [Outputs(StepOutputs(["c"], [2]))]
    assert broker._status().open_requests == 1


def test_id_in_use_by_another_api_server_is_refused(broker: EngineBroker) -> None:
    one = Server(broker)
    two = Server(broker)
    one.add("a")
    two.add("a")
    (answer,) = two.of(Answer)
    assert answer.fault.field == "request_id"
    client(broker).listener.deliver(StepOutputs(["a"], [1]))
    assert one.of(Outputs)
    assert not two.of(Outputs)


def test_refused_request_is_forgotten(broker: EngineBroker) -> None:
    one = Server(broker)
    one.add("a")
    client(broker).added["a"].set_exception(ValueError("full"))
    (answer,) = one.of(Answer)
    assert "full" in answer.fault.message
    assert broker._status().open_requests == 0


def test_calls_that_only_read_are_known_to_the_client_of_the_engines() -> None:
    registry = Registry()
    broker = EngineBroker(EngineConfig(), registry)  # type: ignore[arg-type]
    server = Server(broker)
    server.send(FeatureCall(1, "lora.load", b"1"))
    assert not reading_calls(registry)  # type: ignore[arg-type]
    server.send(FeatureCall(2, "lora.list", b"2", only_reads=True))
    assert reading_calls(registry) == {"lora.list"}  # type: ignore[arg-type]
    assert client(broker).called == [("lora.load", b"1"), ("lora.list", b"2")]


def test_abort_of_one_sequence_leaves_the_others(broker: EngineBroker) -> None:
    one = Server(broker)
    one.add("a#0", "a#1")
    one.send(Abort(0, ["a#0", "unknown"]))
    assert client(broker).aborted == ["a#0"]
    assert broker._status().open_requests == 1
    one.send(Abort(0, ["a#1"]))
    assert broker._status().open_requests == 0


def test_requests_of_all_api_servers_can_be_listed_and_aborted(broker: EngineBroker) -> None:
    one = Server(broker)
    two = Server(broker)
    one.add("a#0", "a#1")
    two.add("b")
    two.send(FeatureCall(5, OPEN_IDS, b""))
    (answer,) = two.of(Answer)
    assert sorted(msgspec.json.decode(answer.found[0].scheduler)) == ["a", "b"]
    two.send(FeatureCall(6, ABORT, b"a"))
    assert sorted(client(broker).aborted) == ["a#0", "a#1"]
    (outputs,) = one.of(Outputs)
    assert {each.request_id for each in outputs.step} == {"a#0", "a#1"}
    assert {each.finish_reason for each in outputs.step} == {"abort"}


def test_status_has_the_requests_of_all_and_the_engines_last_steps(broker: EngineBroker) -> None:
    Server(broker).add("a")
    Server(broker).add("b")
    for engine in (0, 1, 0):
        client(broker).listener.observe(StepStats(0.1, 1 + engine, 2, 0.5, engine=engine))
    status: Status = broker._status()
    assert status.open_requests == 2
    assert sorted((each.engine, each.num_running) for each in status.stats) == [(0, 1), (1, 2)]


class Entry:
    """A sink as an API server holds it."""

    def __init__(self, sink: Any) -> None:
        self.sink = sink


class Shared:
    """A sink that counts for all."""


class Own:
    """A sink that each API server needs."""

    per_api_server = True


def test_shared_sinks_of_an_api_server_are_replaced_by_one_that_forwards() -> None:
    sent: list[Any] = []
    sink = ForwardingSink(sent.append, lambda health: (b"", ""))
    own = Own()
    entries = [Entry(own), Entry(Shared()), Entry(Shared())]
    forward_shared(entries, sink)
    assert [each.sink for each in entries] == [own, sink]
    stats = RequestStats("stop", 3, 4, 1.0, extra_fields={"counts": {"x": 1}, "trace": object()})
    sink.tokens(TokenStats(5, first_token_s=[0.5]))
    sink.request(stats)
    copies = [msgspec.msgpack.decode(msgspec.msgpack.encode(each), type=Observed) for each in sent]
    assert copies[0].tokens is not None
    assert (copies[0].tokens.generated_tokens, copies[0].tokens.first_token_s) == (5, [0.5])
    assert copies[1].request is not None
    assert copies[1].request.extra_fields == {"counts": {"x": 1}}


def test_token_statistics_of_several_deliveries_are_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sinks, "SEND_S", 1e9)
    sent: list[Any] = []
    sink = ForwardingSink(sent.append, lambda health: (b"page", "text"))
    sink.request(RequestStats("stop", 3, 4, 1.0))
    sent.clear()
    first = TokenStats(2, 30, 16, first_token_s=[0.5], inter_token_s=[0.1])
    for stats in (first, TokenStats(7, engine=1), TokenStats(3, 1, inter_token_s=[0.2, 0.3])):
        sink.tokens(stats)
    assert not sent
    assert sink.expose({}) == (b"page", "text")
    assert sent == [
        Observed(tokens=TokenStats(5, 31, 16, [0.5], [0.1, 0.2, 0.3])),
        Observed(tokens=TokenStats(7, engine=1)),
    ]
    assert first == TokenStats(2, 30, 16, [0.5], [0.1])  # other sinks may have it
    sink.tokens(TokenStats(1))
    sink.request(RequestStats("stop", 3, 4, 1.0))
    assert [type(each.tokens or each.request) for each in sent[2:]] == [TokenStats, RequestStats]
    monkeypatch.setattr(sinks, "SEND_S", 0.0)
    sink.tokens(TokenStats(1))
    assert len(sent) == 5
