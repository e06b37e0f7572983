"""One output from first to last token: text in, deltas of reasoning, content and tool calls out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from builtin_plugins.output_parsers.runtime.events import (
    ArgumentsPiece,
    Call,
    CallBegun,
    CallEnded,
    CallEvent,
    Event,
    Ranges,
    Reasoning,
    Recovery,
    Text,
    without_specials,
)
from builtin_plugins.output_parsers.runtime.formats import (
    ParseRequest,
    Reading,
    ReasoningFormat,
    ToolFormat,
    random_call_id,
)
from builtin_plugins.output_parsers.runtime.json_text import Broken
from builtin_plugins.output_parsers.runtime.scan import Scan


class ReasoningPiece(msgspec.Struct, frozen=True):
    """Some of what the model thinks."""

    text: str


class TextPiece(msgspec.Struct, frozen=True):
    """Some of what it says."""

    text: str


Piece = ReasoningPiece | TextPiece | CallEvent


class ParsedDelta(msgspec.Struct):
    """What became known with some text.

    The deltas of an output joined are the same however its text came.
    """

    pieces: list[Piece] = []
    """In the order of the text; every call has an id."""
    recoveries: list[str] = []
    """How what is not as the formats have it was read all the same."""

    @classmethod
    def joined(cls, deltas: Iterable[ParsedDelta]) -> ParsedDelta:
        """Return several as one."""
        found = list(deltas)
        return cls(
            _merged(piece for delta in found for piece in delta.pieces),
            [what for delta in found for what in delta.recoveries],
        )

    @property
    def reasoning(self) -> str:
        """All thoughts."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, ReasoningPiece))

    @property
    def content(self) -> str:
        """All of the answer that is text."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, TextPiece))

    @property
    def calls(self) -> list[Call]:
        """The calls of which all is here."""
        return [call for call, whole in self._calls if whole]

    @property
    def broken(self) -> list[Call]:
        """The calls of which all is here that there was to come, and which are not whole."""
        return [call for call, whole in self._calls if not whole]

    @property
    def _calls(self) -> list[tuple[Call, bool]]:
        begun = {piece.index: piece for piece in self.pieces if isinstance(piece, CallBegun)}
        ended = {piece.index: piece.whole for piece in self.pieces if isinstance(piece, CallEnded)}
        arguments: dict[int, list[str]] = {index: [] for index in begun}
        for piece in self.pieces:
            if isinstance(piece, ArgumentsPiece) and piece.index in begun:
                arguments[piece.index].append(piece.text)
        return [
            (Call(call.name, "".join(arguments[index]), call.id), ended[index])
            for index, call in begun.items()
            if index in ended
        ]


def _merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Return pieces, neighbours of one kind as one."""
    found: list[Piece] = []
    for _, group in groupby(pieces, key=lambda piece: (type(piece), getattr(piece, "index", None))):
        first, *more = group
        texts = [piece.text for piece in more if not isinstance(piece, CallBegun | CallEnded)]
        if texts and not isinstance(first, CallBegun | CallEnded):
            first = msgspec.structs.replace(first, text="".join([first.text, *texts]))
        found.append(first)
    return found


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
        if (
            self._reading is not None
        ):  # it still asks: no format should, and none may lose text by it
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
        """`special`: texts of the tokenizer's special tokens; `show_special` leaves them in what is
        shown.
        """
        formats = [given for given in (reasoning, tools) if given is not None]
        self._stages = [_stage(given, request, special) for given in formats]
        self._call_id = random_call_id if tools is None else tools.call_id
        self._show_special = show_special

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
        return ParsedDelta.joined([self.feed(text, specials), self.finish()])

    def _through(self, events: Sequence[Event], first: int) -> list[Event]:
        """Pass content on through the stages from the given one; the rest stays what it is."""
        for stage in self._stages[first:]:
            events = [
                out
                for event in events
                for out in (
                    stage.take(event.text, event.specials) if isinstance(event, Text) else [event]
                )
            ]
        return list(events)

    def _delta(self, events: Sequence[Event]) -> ParsedDelta:
        shown = (self._piece(event) for event in events if not isinstance(event, Recovery))
        return ParsedDelta(
            _merged(piece for piece in shown if piece is not None),
            [event.what for event in events if isinstance(event, Recovery)],
        )

    def _piece(self, event: Text | Reasoning | CallEvent) -> Piece | None:
        """Return what a client sees of an event; None where that is nothing."""
        match event:
            case Text() | Reasoning():
                text = event.text if self._show_special else without_specials(event)
                kind = TextPiece if isinstance(event, Text) else ReasoningPiece
                return kind(text) if text else None
            case CallBegun(index, name, ""):
                return CallBegun(index, name, self._call_id(name, index))
        return event


def _stage(
    given: ToolFormat | ReasoningFormat, request: ParseRequest, special: frozenset[str]
) -> _Stage:
    ends = given.call_ends if isinstance(given, ToolFormat) else ()
    scan = Scan(
        special & frozenset(given.markers),
        ends=ends,
        parameters=request.parameters,
        tells=request.in_pieces,
    )
    return _Stage(given.read(scan, request), scan)
