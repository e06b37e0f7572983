"""What every server must keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builtin_plugins.servers.contract import Server
from core.testing.echo_engine import EchoEngine

if TYPE_CHECKING:
    from core.testing.conformance import Subject

CONTRACT = Server


def _server(subject: Subject) -> Any:
    config = subject.config
    return subject.target(EchoEngine(config), config, {})


def check_is_made_without_listening(subject: Subject) -> None:
    """Making a server takes no port, so two can be made at once; `run` is what serves."""
    first = _server(subject)
    second = _server(subject)
    assert first is not second, (
        f"{subject.entry.name}: both constructions returned one server; keep no shared state."
    )


def check_calls_each_group_for_its_routes(subject: Subject) -> None:
    """Every group it is given is carried: its `routes` are called when the server is made."""
    called = []

    class Group:
        def routes(self) -> list[Any]:
            called.append(self)
            return []

    config = subject.config
    subject.target(EchoEngine(config), config, {"one": Group(), "two": Group()})
    assert len({id(group) for group in called}) == 2, (
        f"{subject.entry.name}: some route groups were never called."
    )
