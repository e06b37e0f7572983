"""Attempts to read a call: which calls count, and where reading resumes when one breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from builtin_plugins.output_parsers.runtime.events import Call, Event, Text, joined
from builtin_plugins.output_parsers.runtime.json_text import Broken, read_json, write_json
from builtin_plugins.output_parsers.runtime.streamed_call import StreamedCall
from builtin_plugins.output_parsers.runtime.text_stream import TextStream, markers
from builtin_plugins.output_parsers.runtime.values import coerce_arguments
from builtin_plugins.output_parsers.runtime.visible_text import VisibleText

MAX_REREAD: Final = 3
"""Maximum ratio of text read again after broken calls to text read once: keeps time linear."""


class CallAttempts(TextStream):
    """A text stream that collects tool calls and recovers from broken ones."""

    def __init__(
        self,
        by_id: frozenset[str] = frozenset(),
        *,
        ends: tuple[str, ...] = (),
        parameters: Callable[[str], Mapping[str, Any]] | None = None,
        stream_calls: bool = False,
    ) -> None:
        """`by_id`: markers that are special tokens here; spelled in other tokens they are text.

        `ends`: markers that end a call or all calls. `parameters`: returns the schema of a tool's
        arguments. `stream_calls`: emit calls while they are written; emitted text is final.
        """
        super().__init__(by_id)
        self._ends = ends
        self._parameters = parameters
        self._stream_calls = stream_calls
        self._starts: tuple[str, ...] = ()
        """Markers that may start a call, from the last `content_until_call`."""
        self._num_reread = 0
        self._calls: list[Call] | None = None
        """Calls of the current attempt; None outside of one."""
        self._streamed: StreamedCall | None = None
        """First call of the attempt, if it is streamed."""
        self._streamed_from = 0
        """Position in the output where the streamed call starts."""
        self._streamed_to = 0
        """Position up to which the call is emitted; 0 if nothing is."""
        self._committed = False
        """Some calls of this attempt count even if the rest breaks."""
        self._recovered: list[str] = []
        """How the current attempt read malformed text."""
        self._visible = VisibleText()

    def pop_events(self) -> list[Event]:
        """Return the events since the last call."""
        return self._visible.pop_events()

    def flush_as_content(self) -> None:
        """Show the rest of the text as content: the format has returned."""
        self._settle()
        at = self._at
        specials = self._specials_in(at, len(self._text))
        self._visible.add_text(self._read(len(self._text)), Text, specials, at)
        self._consumed = []

    def finish(self) -> None:
        """Show everything that is left: the output is complete."""
        self.flush_as_content()
        self._visible.finish()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Read something that may break: calls added inside count only if all of it is well-formed.

        If it breaks, or adds no call, all of its text is content. The emitted part of a streamed
        call that breaks stays emitted, and only the rest is content.
        """
        self._calls = []
        self._recovered = []
        self._committed = False
        self._streamed = None
        self._streamed_to = 0
        whole = True
        try:
            yield
        except Broken:
            self._calls = []
            self._recovered = []
            whole = False
        finally:
            calls = self._calls
            self._calls = None
        if calls or (whole and self._committed and not self._is_streaming):
            self._consumed = []
            self._visible.add_recoveries(self._recovered)
            self._commit(calls or [])
        else:
            if self._is_streaming:
                self._visible.break_call()
            self._put_back()
            self._settle()

    def keep_calls(self) -> None:
        """Commit the calls of this attempt so far: a later break no longer affects them."""
        if self._calls or (self._committed and not self._is_streaming):
            self._visible.add_recoveries(self._recovered)
            self._commit(self._calls or [])
            self._calls = []
            self._recovered = []
            self._consumed = []
            self._committed = True

    def begin_call(self, name: str, call_id: str | None = None, num_after: int = 0) -> StreamedCall:
        """Return the receiver of a call's arguments, which emits them if calls are streamed.

        `add_call` must follow all the same; only then the call is complete. Of several calls that
        count together, the first is streamed. `num_after`: characters read after its name.
        """
        name = name.strip()
        first = self._calls == [] and not self._is_streaming
        streams = self._stream_calls and first and bool(name)
        schema = {} if self._parameters is None else self._parameters(name)
        call = StreamedCall(name, call_id, schema, self._emit if streams else None)
        if streams:
            self._streamed = call
            self._streamed_from = self.position - num_after
        return call

    def note_recovery(self, what: str) -> None:
        """Record how malformed text was read; within an attempt only if it yields a call."""
        if self._calls is None:
            self._visible.add_recoveries([what])
        else:
            self._recovered.append(what)

    def add_call(self, name: Any, arguments: Any, call_id: str | None = None) -> None:
        """Add one tool call. `arguments` is an object or its JSON text; raises `Broken` otherwise.

        Arguments are unwrapped and converted to the types of the tool's schema.
        """
        if not isinstance(name, str) or not name.strip():
            raise Broken
        if isinstance(arguments, str):
            arguments = read_json(arguments or "{}")
        if not isinstance(arguments, dict):
            raise Broken
        if self._parameters is not None:
            fitting = coerce_arguments(arguments, self._parameters(name.strip()))
            if fitting != arguments:
                self.note_recovery("arguments fitted to the tool's schema")
            arguments = fitting
        found = Call(name.strip(), write_json(arguments), call_id)
        if not self._calls and not self._continues_streamed(found):
            raise Broken
        if self._calls is not None:
            self._calls.append(found)
        else:
            self._consumed = []
            self._commit([found])

    @property
    def _is_streaming(self) -> bool:
        """True when part of an incomplete call of this attempt is emitted."""
        return self._streamed is not None and self._streamed.started

    def _emit(self, call: StreamedCall, text: str, num_after: int) -> None:
        """Emit part of a call's arguments that ends `num_after` characters before the position."""
        if not self._streamed_to:
            self._visible.begin_call(call.name, call.id)
        self._visible.add_arguments(text)
        self._streamed_to = self.position - num_after

    def _continues_streamed(self, call: Call) -> bool:
        """Return whether a call agrees with the one that was streamed, if any."""
        streamed = self._streamed
        if streamed is None or not streamed.started:
            return True
        same = (streamed.name, streamed.id) == (call.name, call.id)
        return same and call.arguments.startswith(streamed.emitted)

    def _commit(self, calls: Sequence[Call]) -> None:
        """Show complete calls, of which the first may be emitted in part."""
        emitted = "" if self._streamed is None else self._streamed.emitted
        self._streamed = None
        self._streamed_to = 0
        if calls:
            self._visible.add_calls(calls, len(emitted))

    def _put_back(self) -> None:
        """Resume reading within a broken call where another call may start."""
        if not (self._consumed and self._ends):
            return
        begun, *more = self._consumed
        num_chars = sum(len(text) for text, _ in more)
        if num_chars > self._at:  # part of it came with earlier chunks
            at = self._at
            after = self._specials_in(at, len(self._text))
            left = tuple((start - at, end - at) for start, end in after)
            self._text, self._specials = joined([*more, (self._text[at:], left)])
            self._at = num_chars
            self._base += at - num_chars
        start = self._at - num_chars
        stop = self._at
        # The text that started the streamed call is not read again.
        emitted = max(0, self._streamed_from - self._base) if self._is_streaming else 0
        again = self._start_in(max(start, emitted), stop)
        num_reread = self._num_reread + stop - again
        if again == stop or num_reread > MAX_REREAD * (self._num_read - self._num_reread):
            return
        self._num_reread = num_reread
        self._visible.add_recoveries(["a broken call before another"])
        self._at = start
        self._consumed = [begun]
        self._read(again)

    def _start_in(self, start: int, stop: int) -> int:
        """Return where a call may start in `_text[start:stop]`, or `stop`; not at brackets."""
        starts = [text for text in self._starts if len(text) > 1]
        if starts:
            for found in markers(*starts).pattern.finditer(self._text, start, stop):
                if self._is_marker(found[0], found.start()):
                    return found.start()
        return stop

    def _settle(self) -> None:
        """Show the text of a broken attempt as content, except for what is emitted as a call."""
        skipped = 0
        if self._streamed_to:
            num_consumed = sum(len(text) for text, _ in self._consumed)
            skipped = self._streamed_to - (self.position - num_consumed)
        for text, specials in self._consumed:
            emitted = min(max(skipped, 0), len(text))
            self._visible.add_text(text[emitted:], Text, specials, emitted, broken=True)
            skipped -= emitted
        self._consumed = []
