"""One output from first to last token: text in, deltas of reasoning, content and tool calls out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from core.parsing.events import Call, Event, Ranges, Reasoning, Recovery, Text, without_specials
from core.parsing.formats import ParseRequest, Reading, ReasoningFormat, ToolFormat, random_call_id
from core.parsing.json_text import Broken
from core.parsing.scan import Scan


class ParsedDelta(msgspec.Struct):
    """What became known with some text. The deltas of an output joined are the same however its text came."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = []
    """Whole calls, each with an id."""
    recoveries: list[str] = []
    """How what is not as the formats have it was read all the same."""


class _Stage:
    """A format at work."""

    def __init__(self, reading: Reading, scan: Scan) -> None:
        self._reading: Reading | None = reading
        self._scan = scan
        self._advance()

    def take(self, text: str, specials: Ranges) -> list[Event]:
        self._scan.feed(text, specials)
        return self._advance()

    def finish(self) -> list[Event]:
        self._scan.close()
        found = self._advance()
        if self._reading is not None:  # it still asks: no format should, and none may lose text by it
            self._reading.close()
        self._scan.end()
        return found + self._scan.events()

    def _advance(self) -> list[Event]:
        if self._reading is not None:
            try:
                next(self._reading)
            except (StopIteration, Broken):  # whatever it read last is content
                self._reading = None
        if self._reading is None:
            self._scan.pass_on()
        return self._scan.events()


class OutputParser:
    """Reasoning is told from content first, tool calls are read from the content."""

    def __init__(
        self,
        request: ParseRequest,
        *,
        tools: ToolFormat | None = None,
        reasoning: ReasoningFormat | None = None,
        special: frozenset[str] = frozenset(),
        show_special: bool = False,
    ) -> None:
        """`special`: texts of the tokenizer's special tokens; `show_special` leaves them in what is shown."""
        formats = [given for given in (reasoning, tools) if given is not None]
        self._stages = [_stage(given, request, special) for given in formats]
        self._call_id = random_call_id if tools is None else tools.call_id
        self._show_special = show_special
        self.num_calls = 0

    def feed(self, text: str, specials: Sequence[tuple[int, int]] = ()) -> ParsedDelta:
        """Take text, and where in it special tokens are spelled; return what is certain now."""
        return self._delta(self._through([Text(text, tuple(specials))], 0))

    def finish(self) -> ParsedDelta:
        """The output has ended: return the rest. What is broken, or not whole, is content."""
        events: list[Event] = []
        for index, stage in enumerate(self._stages):
            events += self._through(stage.finish(), index + 1)
        return self._delta(events)

    def whole(self, text: str, specials: Sequence[tuple[int, int]] = ()) -> ParsedDelta:
        """Return what a whole output says."""
        first, last = self.feed(text, specials), self.finish()
        return ParsedDelta(
            first.reasoning + last.reasoning,
            first.content + last.content,
            first.calls + last.calls,
            first.recoveries + last.recoveries,
        )

    def _through(self, events: Sequence[Event], first: int) -> list[Event]:
        """Pass content on through the stages from the given one; the rest stays what it is."""
        for stage in self._stages[first:]:
            events = [
                out
                for event in events
                for out in (stage.take(event.text, event.specials) if isinstance(event, Text) else [event])
            ]
        return list(events)

    def _delta(self, events: Sequence[Event]) -> ParsedDelta:
        reasoning = "".join(self._shown(events, Reasoning))
        content = "".join(self._shown(events, Text))
        calls = [self._named(event) for event in events if isinstance(event, Call)]
        return ParsedDelta(reasoning, content, calls, [event.what for event in events if isinstance(event, Recovery)])

    def _shown(self, events: Sequence[Event], kind: type[Text] | type[Reasoning]) -> Iterator[str]:
        for event in events:
            if isinstance(event, kind):
                yield event.text if self._show_special else without_specials(event)

    def _named(self, call: Call) -> Call:
        index, self.num_calls = self.num_calls, self.num_calls + 1
        return call if call.id is not None else Call(call.name, call.arguments, self._call_id(call.name, index))


def _stage(given: ToolFormat | ReasoningFormat, request: ParseRequest, special: frozenset[str]) -> _Stage:
    ends = given.call_ends if isinstance(given, ToolFormat) else ()
    scan = Scan(special & frozenset(given.markers), ends=ends, parameters=request.parameters)
    return _Stage(given.read(scan, request), scan)
