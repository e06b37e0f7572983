"""What a stage shows: text, thoughts and calls in order, without the white space around them that
is layout.
"""

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


class Shown:
    """Collects events.

    White space waits until it is known to be between words, or at the end of the output.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self.fresh = True
        """Nothing but white space came since the start, or since a call or thoughts: such space is
        layout.
        """
        self.behind = False
        """It is directly behind a call or thoughts, or behind other layout, that this stands."""
        self._kind: Kind = Text
        """What was shown last."""
        self._space: dict[Kind, list[str]] = {Text: [], Reasoning: []}
        """White space that is shown if text of its kind follows it, or if the output ends with it.
        """
        self._num_calls = 0

    @property
    def line_begins(self) -> bool:
        """Say whether content to come stands at the beginning of a line."""
        return self.fresh or any("\n" in space for space in self._space[Text])

    def events(self) -> list[Event]:
        """Return what was shown since the last time."""
        found = self._events
        self._events = []
        return found

    def say(
        self,
        text: str,
        kind: Kind,
        specials: Sequence[tuple[int, int]] = (),
        at: int = 0,
        *,
        broken: bool = False,
    ) -> None:
        """Show text; `specials` are where special tokens are spelled, counted from `at` characters
        before it.
        """
        if not text:
            return
        self._kind = kind
        skipped = len(text) - len(text.lstrip()) if self.fresh else 0
        end = max(skipped, len(text.rstrip()))
        if end == skipped:  # white space only
            self._space[kind].append(text[skipped:])
            return
        space = "".join(self._space[kind])
        shift = len(space) - skipped - at
        ranges = tuple((start + shift, stop + shift) for start, stop in specials)
        shown = space + text[skipped:end]
        self._events.append(Text(shown, ranges, broken) if kind is Text else kind(shown, ranges))
        self.fresh = self.behind = False
        self._space[kind] = [text[end:]]

    def begin(self, name: str, call_id: str | None) -> None:
        """Show that a call begins."""
        self._events.append(CallBegun(self._num_calls, name, call_id or ""))
        self.layout()

    def arguments(self, text: str) -> None:
        """Show some arguments of the call that has begun."""
        self._events.append(ArgumentsPiece(self._num_calls, text))

    def broke(self) -> None:
        """The call that has begun will not be whole."""
        self._events.append(CallEnded(self._num_calls, whole=False))
        self._num_calls += 1

    def call(self, calls: Sequence[Call], num_shown: int = 0) -> None:
        """Show whole calls; of the first one's arguments as many characters were shown before."""
        for call in calls:
            if not num_shown:
                self.begin(call.name, call.id)
            self.arguments(call.arguments[num_shown:])
            self._events.append(CallEnded(self._num_calls))
            self._num_calls += 1
            num_shown = 0
        self.layout()

    def recovered(self, what: Sequence[str]) -> None:
        """Tell how what is not as its format has it was read."""
        self._events += map(Recovery, what)

    def layout(self) -> None:
        """White space behind what ends here is layout, and so is that before it unless more text
        comes.
        """
        self.fresh = self.behind = True

    def apart(self, text: str) -> None:
        """Content that comes stands apart from what was shown before, by the white space there or
        else by a text.
        """
        if not any(self._space[Text]):
            self._space[Text].append(text)

    def end(self) -> None:
        """The output is complete: show the white space it ends with."""
        space = "".join(self._space[self._kind])
        if space and not self.fresh:
            self._events.append(self._kind(space))
