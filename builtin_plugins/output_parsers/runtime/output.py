"""Parses one output: text in, deltas of reasoning, content and tool calls out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from builtin_plugins.output_parsers.contract import (
    ParseRequest,
    ReasoningFormat,
    ToolFormat,
    random_call_id,
)
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
from builtin_plugins.output_parsers.runtime.json_text import Broken
from builtin_plugins.output_parsers.runtime.reader import OutputReader
from builtin_plugins.output_parsers.runtime.text_stream import Reading


class ReasoningPiece(msgspec.Struct, frozen=True):
    """A piece of reasoning."""

    text: str


class TextPiece(msgspec.Struct, frozen=True):
    """A piece of content."""

    text: str


Piece = ReasoningPiece | TextPiece | CallEvent


class ParsedDelta(msgspec.Struct):
    """What a chunk of text adds. The joined deltas of an output do not depend on the chunking."""

    pieces: list[Piece] = []
    """Pieces in text order; every call has an id."""
    recoveries: list[str] = []
    """Descriptions of how malformed text was read."""

    @classmethod
    def joined(cls, deltas: Iterable[ParsedDelta]) -> ParsedDelta:
        """Return several deltas as one."""
        found = list(deltas)
        return cls(
            _merged(piece for delta in found for piece in delta.pieces),
            [what for delta in found for what in delta.recoveries],
        )

    @property
    def reasoning(self) -> str:
        """All reasoning text."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, ReasoningPiece))

    @property
    def content(self) -> str:
        """All content text."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, TextPiece))

    @property
    def calls(self) -> list[Call]:
        """The complete calls."""
        return [call for call, whole in self._calls if whole]

    @property
    def broken(self) -> list[Call]:
        """The calls that ended incomplete."""
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
    """Return pieces with adjacent ones of a kind merged."""
    found: list[Piece] = []
    for _, group in groupby(pieces, key=lambda piece: (type(piece), getattr(piece, "index", None))):
        first, *more = group
        texts = [piece.text for piece in more if not isinstance(piece, CallBegun | CallEnded)]
        if texts and not isinstance(first, CallBegun | CallEnded):
            first = msgspec.structs.replace(first, text="".join([first.text, *texts]))
        found.append(first)
    return found


class _Stage:
    """A running format."""

    def __init__(self, reading: Reading, reader: OutputReader) -> None:
        self._reading: Reading | None = reading
        self._reader = reader
        self._advance()

    def feed(self, text: str, specials: Ranges) -> list[Event]:
        self._reader.feed(text, specials)
        return self._advance()

    def finish(self) -> list[Event]:
        self._reader.close()
        found = self._advance()
        if self._reading is not None:  # a format that waits after the end must not lose text
            self._reading.close()
        self._reader.finish()
        return found + self._reader.pop_events()

    def _advance(self) -> list[Event]:
        if self._reading is not None:
            try:
                next(self._reading)
            except (StopIteration, Broken):  # the text it read last is content
                self._reading = None
        if self._reading is None:
            self._reader.flush_as_content()
        return self._reader.pop_events()


class OutputParser:
    """Splits an output into reasoning and content, then reads tool calls from the content."""

    def __init__(
        self,
        request: ParseRequest,
        *,
        tools: ToolFormat | None = None,
        reasoning: ReasoningFormat | None = None,
        special: frozenset[str] = frozenset(),
        show_special: bool = False,
    ) -> None:
        """`special`: texts of the tokenizer's special tokens; `show_special` keeps them visible."""
        formats = [given for given in (reasoning, tools) if given is not None]
        self._stages = [_stage(given, request, special) for given in formats]
        self._call_id = random_call_id if tools is None else tools.call_id
        self._show_special = show_special

    def feed(self, text: str, specials: Sequence[tuple[int, int]] = ()) -> ParsedDelta:
        """Add text, with the ranges of its special tokens; return what is certain now."""
        return self._delta(self._through([Text(text, tuple(specials))], 0))

    def finish(self) -> ParsedDelta:
        """Return the rest of the complete output. Broken and incomplete calls are content."""
        events: list[Event] = []
        for index, stage in enumerate(self._stages):
            events += self._through(stage.finish(), index + 1)
        return self._delta(events)

    def whole(self, text: str, specials: Sequence[tuple[int, int]] = ()) -> ParsedDelta:
        """Return the parsed form of a complete output."""
        return ParsedDelta.joined([self.feed(text, specials), self.finish()])

    def _through(self, events: Sequence[Event], first: int) -> list[Event]:
        """Pass content through the stages from index `first`; other events stay unchanged."""
        for stage in self._stages[first:]:
            passed: list[Event] = []
            for event in events:
                if isinstance(event, Text):
                    passed += stage.feed(event.text, event.specials)
                else:
                    passed.append(event)
            events = passed
        return list(events)

    def _delta(self, events: Sequence[Event]) -> ParsedDelta:
        pieces = (self._piece(event) for event in events if not isinstance(event, Recovery))
        return ParsedDelta(
            _merged(piece for piece in pieces if piece is not None),
            [event.what for event in events if isinstance(event, Recovery)],
        )

    def _piece(self, event: Text | Reasoning | CallEvent) -> Piece | None:
        """Return the client's view of an event; None if nothing is visible."""
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
    reader = OutputReader(
        special & frozenset(given.markers),
        ends=given.call_ends if isinstance(given, ToolFormat) else (),
        parameters=request.parameters,
        stream_calls=request.stream_calls,
    )
    return _Stage(given.read(reader, request), reader)
