"""How many bytes of requests the server holds at once: of one client, and of all.

What is beyond is refused at the door.
"""

from __future__ import annotations

from builtin_plugins.servers.http.errors import Refused
from builtin_plugins.servers.http.limits import Limits


class Door:
    """Counts bytes of bodies from when they are announced until nothing of them is kept."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_client: dict[str, int] = {}
        self.num_bytes = 0
        """In flight now."""

    def enter(self, client: str) -> Passage:
        """Let a request in that has no bytes yet."""
        return Passage(self, client)

    def take(self, client: str, num_bytes: int) -> None:
        """Count bytes. Raises `Refused` where there are too many."""
        of_client = self._by_client.get(client, 0) + num_bytes
        if of_client > self._limits.client_bytes:
            raise Refused(self._limits.client_is_full())
        if self.num_bytes + num_bytes > self._limits.bytes_in_flight:
            raise Refused(self._limits.full())
        self._by_client[client] = of_client
        self.num_bytes += num_bytes

    def give_back(self, client: str, num_bytes: int) -> None:
        """Count bytes no more."""
        self.num_bytes -= num_bytes
        left = self._by_client.pop(client) - num_bytes
        if left:
            self._by_client[client] = left


class Passage:
    """One request's bytes."""

    def __init__(self, door: Door, client: str) -> None:
        self._door = door
        self._client = client
        self._held = self._seen = 0
        self._has_left = False

    def announce(self, num_bytes: int) -> None:
        """Count a body that is to come. Raises `Refused`."""
        if num_bytes:
            self._door.take(self._client, num_bytes)
            self._held += num_bytes

    def see(self, num_bytes: int) -> None:
        """Count a part that has come, where it was not announced. Raises `Refused`."""
        self._seen += num_bytes
        if not self._has_left:
            self.announce(max(0, self._seen - self._held))

    def leave(self) -> None:
        """Nothing is kept of the body any more, and nothing of it is to come. May be called twice."""
        self._has_left = True
        if self._held:
            self._door.give_back(self._client, self._held)
            self._held = 0
