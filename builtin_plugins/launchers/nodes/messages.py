"""The messages between the head and its nodes, over a CurveZMQ connection."""

from __future__ import annotations

import msgspec

from builtin_plugins.executors.api import Credentials


class Join(msgspec.Struct, frozen=True, tag=True):
    """A node's first message; answered by `Joined` or `Refused`."""

    node_rank: int
    address: str
    """The node's own address."""
    version: str
    """Version of the engine."""
    settings: dict[str, str]
    """Settings that were given to the node, by name, as JSON."""
    model: str
    """Content hash of the model's config and weights."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A process of the node has ended."""

    number: int
    cause: str
    was_killed: bool


class Joined(msgspec.Struct, frozen=True, tag=True):
    """The node belongs to the head."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The node does not belong to the head."""

    reason: str
    may_retry: bool = False
    """Whether the reason may pass."""


class Launch(msgspec.Struct, frozen=True, tag=True):
    """Start a process; answered by `Ended` after its end."""

    number: int
    """Number of the process among those of the head."""
    credentials: Credentials
    """How the process connects to its parent."""
    environment: dict[str, str]


class Kill(msgspec.Struct, frozen=True, tag=True):
    """End a process at once."""

    number: int


class Probe(msgspec.Struct, frozen=True, tag=True):
    """Shows the head whether the node is still connected."""


class Finish(msgspec.Struct, frozen=True, tag=True):
    """The head has stopped, and the node ends as well."""


FromNode = Join | Ended
ToNode = Joined | Refused | Launch | Kill | Probe | Finish
