"""What writers of answers have in common whose streams are typed events: text that goes on takes a
short way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from builtin_plugins.routes.conversation.events import Event
from builtin_plugins.routes.streams import typed_event
from core.api import TextPiece


class TypedWriter(ABC):
    """Builds one answer from its events; yields what a stream tells of it."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer: Final = answer
        """The answer so far; it has an `id`."""
        self._open: dict[str, Any] | None = None
        """A part of the answer that is told of."""
        self._parts: list[str] = []
        """Of what is open."""
        self._saying: Callable[[str], bytes] | None = None
        """What makes the event of some more text, where what is open is text."""

    def told(self, events: Sequence[Event]) -> bytes:
        """Note what is new; return what a stream tells of it."""
        if (
            len(events) == 1
            and self._saying is not None
            and isinstance(more := events[0], TextPiece)
            and more.text
        ):
            self._parts.append(more.text)
            return self._saying(more.text)
        return b"".join([typed_event(data) for event in events for data in self.take(event)])

    def note(self, events: Sequence[Event]) -> None:
        """Note what is new, for nobody reads along."""
        for event in events:
            for _ in self.take(event):
                pass

    @abstractmethod
    def take(self, event: Event) -> Iterator[dict[str, Any]]:
        """Note what is new; yield the events that tell it."""
