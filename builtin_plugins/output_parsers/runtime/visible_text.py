"""Assembles the visible output of a stage: content, reasoning and calls, without layout space."""

from __future__ import annotations

from collections.abc import Sequence

from builtin_plugins.output_parsers.runtime.events import (
    ArgumentsPiece,
    Call,
    CallBegun,
    CallEnded,
    Event,
    Reasoning,
    Recovery,
    Text,
)

Kind = type[Text] | type[Reasoning]


class VisibleText:
    """Collects events. White space waits until text of its kind, or the end of the output."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self.at_block_start = True
        """Only white space, which is layout, since the start or the last call or reasoning."""
        self.after_block = False
        """The position is directly after a call, reasoning or other layout."""
        self._kind: Kind = Text
        """Kind of the last visible text."""
        self._space: dict[Kind, list[str]] = {Text: [], Reasoning: []}
        """Pending white space, visible if text of its kind or the end of the output follows."""
        self._num_calls = 0

    @property
    def at_line_start(self) -> bool:
        """True when the next content starts a line."""
        return self.at_block_start or any("\n" in space for space in self._space[Text])

    def pop_events(self) -> list[Event]:
        """Return the events since the last call."""
        found = self._events
        self._events = []
        return found

    def add_text(
        self,
        text: str,
        kind: Kind,
        specials: Sequence[tuple[int, int]] = (),
        at: int = 0,
        *,
        broken: bool = False,
    ) -> None:
        """Add content or reasoning; `specials` are ranges relative to `at` characters before it."""
        if not text:
            return
        self._kind = kind
        skipped = len(text) - len(text.lstrip()) if self.at_block_start else 0
        end = max(skipped, len(text.rstrip()))
        if end == skipped:  # white space only
            self._space[kind].append(text[skipped:])
            return
        space = "".join(self._space[kind])
        shift = len(space) - skipped - at
        ranges = tuple((start + shift, stop + shift) for start, stop in specials)
        visible = space + text[skipped:end]
        if kind is Text:
            self._events.append(Text(visible, ranges, broken))
        else:
            self._events.append(kind(visible, ranges))
        self.at_block_start = False
        self.after_block = False
        self._space[kind] = [text[end:]]

    def begin_call(self, name: str, call_id: str | None) -> None:
        """Start a call."""
        self._events.append(CallBegun(self._num_calls, name, call_id or ""))
        self.start_block()

    def add_arguments(self, text: str) -> None:
        """Add a piece of the started call's arguments."""
        self._events.append(ArgumentsPiece(self._num_calls, text))

    def break_call(self) -> None:
        """End the started call as incomplete."""
        self._events.append(CallEnded(self._num_calls, whole=False))
        self._num_calls += 1

    def add_calls(self, calls: Sequence[Call], num_emitted: int = 0) -> None:
        """Add complete calls; `num_emitted` characters of the first one's arguments are out."""
        for call in calls:
            if not num_emitted:
                self.begin_call(call.name, call.id)
            self.add_arguments(call.arguments[num_emitted:])
            self._events.append(CallEnded(self._num_calls))
            self._num_calls += 1
            num_emitted = 0
        self.start_block()

    def add_recoveries(self, what: Sequence[str]) -> None:
        """Add descriptions of how malformed text was read."""
        self._events += map(Recovery, what)

    def start_block(self) -> None:
        """Start a new block: the white space around this position is layout."""
        self.at_block_start = True
        self.after_block = True

    def separate(self, text: str) -> None:
        """Put a separator before the next content, unless white space is pending."""
        if not any(self._space[Text]):
            self._space[Text].append(text)

    def finish(self) -> None:
        """Add the white space at the end of the complete output."""
        space = "".join(self._space[self._kind])
        if space and not self.at_block_start:
            self._events.append(self._kind(space))
