"""What a server and a group of routes are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class RouteGroup(Protocol):
    """A set of HTTP routes. Constructed with (engine, config): a
    `ServedEngine` and the configuration.

    Optional attributes:
    - `public_paths`: paths that need no API key and are served in every state of the
      server.
    - `quiet_paths`: paths polled every few seconds; successful requests are not
      access-logged.
    - `bodies()`: JSON schemas of request bodies by path, for `/openapi.json`.
    - `queries`: JSON schemas of query parameters by route ("GET /path") and name.
    - `started()`: a coroutine function; runs in the event loop before the first
      request.
    - `page`: path of a page for browsers, which the server prints when it is ready.
    - `around(app)`: returns an ASGI application that wraps the server's own and also
      sees rejected requests.
    - `one_process`, on the class: why several API servers (`--api-server-count`) cannot
      serve it. They are refused if its plugin is named; otherwise it returns no routes.
    - `switch`, on the class: name of the option without which the group has no routes.
    - `refusal(status, error)`: returns the error body in the form this API's clients
      expect; `error` is OpenAI's error object. A stream then ends with it as an event
      named `error`.

    A request's `scope["state"]` holds `server` (a `ServerActivity`) and `template` (the
    route's path template) where the server sets them.
    """

    def routes(self) -> Sequence[Any]:
        """Return Starlette or FastAPI routes; paths must be unique over all
        groups.
        """


@dataclass(slots=True)
class ServerActivity:
    """The current activity of a server."""

    draining: bool = False
    """The server finishes its open requests, accepts no new ones,
    and ends.
    """
    open_requests: int = 0
    """Number of requests in progress, without those to public paths."""


class Server(Protocol):
    """Accepts connections and serves route groups. Constructed with (engine,
    config, groups by name).

    Optional: a static method `check(config)` raises `ConfigError` for settings that
    cannot work (an address in use); it runs before the model is loaded. A static method
    `open_listeners(config, parent)` returns descriptors by name that several processes of
    the server share (`--api-server-count`); `run` finds them at its parent. An attribute
    `parent` is set before `run` to the `ServerParent` that supervises the process, if
    one does: the server reports there when it serves, and preserves its listening
    sockets if it is a `Parent`.
    """

    def run(self) -> int:
        """Serve until stopped; return the exit status."""
