"""The text of one output as a format reads it: primitives that wait for more text where needed.

A format is a generator that uses the primitives with `yield from`. Each primitive returns the same
for complete and for chunked text and holds back only possible marker prefixes, so neither a format
nor a client can observe the chunking. Text is read once, except within broken calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from builtin_plugins.output_parsers.runtime.brackets import Brackets
from builtin_plugins.output_parsers.runtime.events import Reasoning, Text
from builtin_plugins.output_parsers.runtime.json_stream import (
    CallKeys,
    stream_arguments,
    stream_call,
)
from builtin_plugins.output_parsers.runtime.json_text import Broken, read_json
from builtin_plugins.output_parsers.runtime.recovery import CallAttempts
from builtin_plugins.output_parsers.runtime.streamed_call import Feed, StreamedCall
from builtin_plugins.output_parsers.runtime.text_stream import Reading
from builtin_plugins.output_parsers.runtime.visible_text import Kind


class OutputReader(CallAttempts):
    """The text and the events of one parser stage. Created by `OutputParser`."""

    @property
    def at_block_start(self) -> bool:
        """True without visible text since the start or the last call, reasoning or layout."""
        return self._visible.at_block_start

    @property
    def at_line_start(self) -> bool:
        """True if only white space precedes the last marker in its line."""
        return self._visible.at_line_start

    def content_until_call(self, *ends: str, begins: Sequence[str] = ()) -> Reading:
        """Show content up to the first of some markers; return it, or None at the output's end.

        The marker belongs to the attempt that follows; if that breaks, the marker is content too.
        If the format states call ends, a doubled marker and an empty begin-end pair are layout.
        `begins`: the markers that may start another call within a broken one; default all.
        """
        self._starts = tuple(begins) or ends
        more = [end for end in self._ends if end not in ends]
        while more and (yield from self.skip_layout(*more)):
            self.note_recovery("an end written twice, or of nothing")
        while True:
            found = yield from self._show(ends, Text)
            if found is None or not self._ends or len(found) == 1:  # brackets may come twice
                return found
            following = yield from self._follows((*self._ends, found))
            while following == found:
                self.note_recovery("a begin written twice")
                following = yield from self._follows((*self._ends, found))
            if following is None:
                return found
            self.note_recovery("a begin and an end with nothing between them")
            self.drop()

    def content_until(self, *ends: str) -> Reading:
        """Show content up to the first of some markers; return it, or None at the end."""
        return (yield from self._show(ends, Text))

    def reasoning_until(self, *ends: str) -> Reading:
        """Show reasoning up to the first of some markers; return it, or None at the end."""
        found = yield from self._show(ends, Reasoning)
        self._consumed = []
        self._visible.start_block()
        return found

    def reasoning_or_content(self, starts: Sequence[str], ends: Sequence[str]) -> Reading:
        """Show the text up to the first marker: reasoning before an end, content otherwise.

        Waits for the marker and returns it. Without one the text is content, and returns None.
        """
        self._consumed = []
        found = None
        while found is None:
            _, found = self._next((*starts, *ends))
            if found is None:
                if self._closed:
                    break
                yield
        pieces = self._consumed
        self._consumed = []
        if found is not None:
            self._consumed = [pieces.pop()]
        kind: Kind = Reasoning if found in ends else Text
        for text, specials in pieces:
            self._visible.add_text(text, kind, specials)
        return found

    def read_until(self, *ends: str, feed: Feed | None = None) -> Reading:
        """Return (text, marker) up to the first of some markers. Raises `Broken` if none comes.

        `feed` receives the text as it is read.
        """
        parts: list[str] = []
        while True:
            piece, marker = self._next(ends)
            parts.append(piece)
            if marker is not None:
                return "".join(parts), marker
            if self._closed:
                raise Broken
            if feed is not None and piece:
                feed(piece)
            yield

    def read_before(self, *ends: str) -> Reading:
        """Return the text before the first of some markers, which stays unread."""
        text, marker = yield from self.read_until(*ends)
        self.unread(marker)
        return text

    def drop(self) -> None:
        """Drop the last marker, or the text of the attempt so far, as layout."""
        self._consumed = []
        self._visible.start_block()

    def add_content(self, text: str) -> None:
        """Show content that is not in the output, such as the end of the prompt."""
        self._visible.add_text(text, Text)

    def add_reasoning(self, text: str) -> None:
        """Show reasoning that was read by other means."""
        self._visible.add_text(text, Reasoning)

    def separate(self, text: str) -> None:
        """Put a separator between the content so far and the next content."""
        self._visible.separate(text)

    def skip_until(self, *ends: str) -> Reading:
        """Drop everything up to the first of some markers; return it, or None at the end."""
        while True:
            _, marker = self._next(ends)
            self._consumed = []
            if marker is not None or self._closed:
                self._visible.start_block()
                return marker
            yield

    def skip_optional(self, *texts: str) -> Reading:
        """Skip white space and one of some texts if it follows; return it, or None.

        Outside of an attempt the text is layout, and white space without it is content.
        """
        if self._calls is not None:
            return (yield from self._follows(texts))
        self._consumed = []
        found = yield from self._follows(texts)
        if found is None:
            self._settle()
        self._consumed = []
        return found

    def skip_layout(self, *texts: str) -> Reading:
        """Skip one of some texts directly after a call or reasoning; return it, or None.

        A text that the end of the output cuts off is skipped too.
        """
        if not self._visible.after_block:
            return None
        found = yield from self.skip_optional(*texts)
        rest = self._text[self._at :]
        if self._closed and any(text.startswith(rest) for text in texts):
            self._at += len(rest)
        return found

    def expect(self, *texts: str) -> Reading:
        """Skip white space and one of some texts; return it. Raises `Broken` if none follows."""
        found = yield from self.skip_optional(*texts)
        if found is None:
            raise Broken
        return found

    def close_call(self, *texts: str, before: Sequence[str] = ()) -> Reading:
        """Skip one of some texts after complete arguments; return what ends the call.

        Models omit such texts, and stop tokens remove them. So these end a call as well: the start
        of the next call (stays unread), any call end of the format, one of `before`, and the end of
        the output (returns ""), even within such a text. Raises `Broken` for anything else.
        """
        soft = [text for text in (*self._ends, *self._starts, *before) if text not in texts]
        found = yield from self.skip_optional(*texts, *soft)
        if found in soft:
            self.note_recovery(f"the end of a call is missing before {found}")
            self.unread(found)
        elif found is None:
            rest = self._text[self._at :]
            if not self._closed or not any(text.startswith(rest) for text in (*texts, *soft)):
                raise Broken
            state = "cut off" if rest else "missing"
            self.note_recovery(f"the end of a call is {state} where the output ends")
            self._read(len(self._text))
        return found or ""

    def read_json(self, begun: str = "", keys: CallKeys | None = None) -> Reading:
        """Return the JSON object or list that follows. Raises `Broken` for invalid JSON.

        `begun`: characters of it that are already read. `keys`: it is a call, or a list of calls,
        and the first call is streamed.
        """
        feed = None if keys is None else stream_call(keys, self.begin_call)
        return read_json((yield from self.read_brackets(begun, json=True, feed=feed)))

    def read_object(self, begun: str = "", keys: CallKeys | None = None) -> Reading:
        """Return the JSON object that follows, as `read_json` does. Raises `Broken` otherwise."""
        value = yield from self.read_json(begun, keys)
        if not isinstance(value, dict):
            raise Broken
        return value

    def read_arguments(self, call: StreamedCall, begun: str = "") -> Reading:
        """Return the JSON object that follows: the arguments of a started call."""
        feed = stream_arguments(call)
        value = read_json((yield from self.read_brackets(begun, json=True, feed=feed)))
        if not isinstance(value, dict):
            raise Broken
        return value

    def read_brackets(
        self, begun: str = "", *, json: bool = False, feed: Feed | None = None
    ) -> Reading:
        """Return the text from an opening bracket to its closing one; strings do not count.

        Missing closing brackets of JSON are added before a call end: the model thought it complete.
        `feed` receives the text as it is read.
        """
        yield from self._skip_space()
        brackets = Brackets(json=json)
        parts = [begun]
        brackets.end(begun, 0, len(begun))
        if feed is not None:
            feed(begun)
        while True:
            special = self._specials_in(self._at, len(self._text))
            stop = special[0][0] if special else len(self._text)
            broken = bool(special)
            end = None
            try:
                end = brackets.end(self._text, self._at, stop)
            except ValueError as error:
                stop = int(error.args[0])
                broken = True
            parts.append(self._read(stop if end is None else end))
            if feed is not None:
                feed(parts[-1])
            if end is not None:
                return "".join(parts)
            if json and broken and brackets.missing and self._ends:
                found = yield from self._follows(self._ends)
                if found is not None:
                    self.unread(found)
                    self.note_recovery(f"{brackets.missing} is missing before {found}")
                    return "".join(parts) + brackets.missing
            if broken or self._closed:
                raise Broken
            yield

    def _show(self, ends: Sequence[str], kind: Kind) -> Reading:
        while True:
            at = self._at
            piece, marker = self._next(ends)
            self._visible.add_text(piece, kind, self._specials_in(at, at + len(piece)), at)
            self._consumed = [] if marker is None else self._consumed[-1:]
            if marker is not None or self._closed:
                return marker
            yield
