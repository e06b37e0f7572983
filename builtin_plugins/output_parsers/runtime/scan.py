"""The text of one output as a format reads it: primitives that wait for more text where the next
piece may matter.

A format is a generator that asks with `yield from`. Whether text comes whole or in pieces, each
primitive reads the same and holds back nothing but what may become a marker, so a format cannot
tell the difference, and neither can a client. Characters are read once, but for those of broken
calls in which others may begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from builtin_plugins.output_parsers.runtime.brackets import Brackets
from builtin_plugins.output_parsers.runtime.events import Call, Event, Reasoning, Text, joined
from builtin_plugins.output_parsers.runtime.followed import (
    CallKeys,
    arguments_followed,
    call_followed,
)
from builtin_plugins.output_parsers.runtime.json_text import Broken, read_json, write_json
from builtin_plugins.output_parsers.runtime.markers import markers
from builtin_plugins.output_parsers.runtime.shown import Kind, Shown
from builtin_plugins.output_parsers.runtime.source import Source, Waits
from builtin_plugins.output_parsers.runtime.told import Feed, Told
from builtin_plugins.output_parsers.runtime.values import fitting_arguments

MOST_REREAD: Final = 3
"""How many times as much may be read again, of calls that broke, as was read once: time stays
linear.
"""


class Scan(Source):
    """One stage's text and what was found in it. Made by `builtin_plugins.output_parsers.runtime.output`."""

    def __init__(
        self,
        by_id: frozenset[str] = frozenset(),
        *,
        ends: tuple[str, ...] = (),
        parameters: Callable[[str], Mapping[str, Any]] | None = None,
        tells: bool = False,
    ) -> None:
        """`by_id`: markers that are special tokens here; spelled out in other tokens they are
        ordinary text.

        `ends`: what ends a call or all of them; `parameters` gives the schema of a tool's
        arguments; `tells`: calls are told while they are written, and what was told of one stays,
        whole or not.
        """
        super().__init__(by_id)
        self._ends = ends
        self._parameters = parameters
        self._tells = tells
        self._starts: tuple[str, ...] = ()
        """What `text` looked for last: a call may begin there."""
        self._num_reread = 0
        self._calls: list[Call] | None = None
        """Of the attempt under way; None outside of one."""
        self._told: Told | None = None
        """Its first call, where that is told as it comes."""
        self._told_from = self._told_to = 0
        """The places in the output from which and up to which it was told; 0: it was not."""
        self._kept = False
        """Some calls of that attempt count whatever becomes of it."""
        self._recovered: list[str] = []
        """How what that attempt read was not as the format has it."""
        self._shown = Shown()

    # --- for the runtime --------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """Return what was found since the last time."""
        return self._shown.events()

    def pass_on(self) -> None:
        """The format reads no more: show as content all there is."""
        self._settle()
        at = self._at
        specials = self._specials_in(at, len(self._text))
        self._shown.say(self._read(len(self._text)), Text, specials, at)
        self._raw = []

    def end(self) -> None:
        """The output is complete: show what is left."""
        self.pass_on()
        self._shown.end()

    # --- for formats ------------------------------------------------------------------------------

    @property
    def fresh(self) -> bool:
        """Say whether no text was shown since the start, or since a call, thoughts or layout."""
        return self._shown.fresh

    @property
    def line_begins(self) -> bool:
        """Say whether only white space stands in its line in front of the marker that `text` found."""
        return self._shown.line_begins

    def text(self, *ends: str, begins: Sequence[str] = ()) -> Waits:
        """Show text as content up to the first of some markers; return the marker, or None at the
        end of the output.

        The marker belongs to the attempt that follows: if that breaks, it is text as well. Without
        one it is layout. Of a format that states what ends calls it may come twice, and with
        nothing between it and an end it is layout. `begins`: those of the markers with which
        another call may begin in a broken one; all, where none are given.
        """
        self._starts = tuple(begins) or ends
        more = [end for end in self._ends if end not in ends]
        while more and (yield from self.layout(*more)):
            self.recovered("an end written twice, or of nothing")
        while True:
            found = yield from self._show(ends, Text)
            if found is None or not self._ends or len(found) == 1:  # a bracket may well come twice
                return found
            behind = yield from self._follows((*self._ends, found))
            while behind == found:
                self.recovered("a begin written twice")
                behind = yield from self._follows((*self._ends, found))
            if behind is None:
                return found
            self.recovered("a begin and an end with nothing between them")
            self.drop()

    def content(self, *ends: str) -> Waits:
        """Show text as content up to the first of some markers; return the marker, or None at the
        end.
        """
        return (yield from self._show(ends, Text))

    def reasoning(self, *ends: str) -> Waits:
        """Show text as reasoning up to the first of some markers; return the marker, or None at the
        end.
        """
        found = yield from self._show(ends, Reasoning)
        self._raw = []
        self._shown.layout()
        return found

    def thoughts_or_text(self, starts: Sequence[str], ends: Sequence[str]) -> Waits:
        """Show what comes up to the first marker, which is returned: as reasoning before an end,
        else as content.

        All of it waits for that. Without a marker it is content, and None is returned.
        """
        self._raw = []
        found = None
        while found is None:
            _, found = self._next((*starts, *ends))
            if found is None:
                if self._closed:
                    break
                yield
        pieces = self._raw
        self._raw = []
        if found is not None:
            self._raw = [pieces.pop()]
        for text, specials in pieces:
            self._shown.say(text, Reasoning if found in ends else Text, specials)
        return found

    def take(self, *ends: str, feed: Feed | None = None) -> Waits:
        """Return the text up to the first of some markers, and the marker. Raises `Broken` if none
        comes.

        `feed` takes of the text what is read while the marker has not come.
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

    def before(self, *ends: str) -> Waits:
        """Return the text in front of the first of some markers, which stays unread.

        Raises `Broken` if none comes.
        """
        text, marker = yield from self.take(*ends)
        self.unread(marker)
        return text

    def drop(self) -> None:
        """What was read last, or since the attempt began, is no call and no text: layout, as white
        space around it.
        """
        self._raw = []
        self._shown.layout()

    def say(self, text: str) -> None:
        """Show as content what the prompt has of the answer."""
        self._shown.say(text, Text)

    def think(self, text: str) -> None:
        """Show as reasoning a text that was read otherwise."""
        self._shown.say(text, Reasoning)

    def apart(self, text: str) -> None:
        """Let content that comes stand apart by a text from that before it."""
        self._shown.apart(text)

    def skip(self, *ends: str) -> Waits:
        """Leave out everything up to the first of some markers; return the marker, or None at the
        end.
        """
        while True:
            _, marker = self._next(ends)
            self._raw = []
            if marker is not None or self._closed:
                self._shown.layout()
                return marker
            yield

    def maybe(self, *texts: str) -> Waits:
        """Skip white space and one of some texts if it follows; return which did, or None.

        Outside of an attempt the text is layout, and white space with none behind it is content.
        """
        if self._calls is not None:
            return (yield from self._follows(texts))
        self._raw = []
        found = yield from self._follows(texts)
        if found is None:
            self._settle()
        self._raw = []
        return found

    def layout(self, *texts: str) -> Waits:
        """Skip one of some texts where it follows directly behind a call or reasoning; return which
        did, or None.

        Cut off at the end of the output it is skipped, too.
        """
        if not self._shown.behind:
            return None
        found = yield from self.maybe(*texts)
        rest = self._text[self._at :]
        if self._closed and any(text.startswith(rest) for text in texts):
            self._at += len(rest)
        return found

    def expect(self, *texts: str) -> Waits:
        """Skip white space and one of some texts; return which it was.

        Raises `Broken` if none follows.
        """
        found = yield from self.maybe(*texts)
        if found is None:
            raise Broken
        return found

    def close_call(self, *texts: str, before: Sequence[str] = ()) -> Waits:
        """Skip one of some texts behind arguments that are complete; return what ends the call, ""
        for the output's end.

        Models forget such texts, and stop tokens swallow them: the next call's begin, which stays
        unread, any of the format's ends and the end of the output, perhaps within such a text, end
        a call as well; `before` says what else may follow. Raises `Broken` for all else.
        """
        soft = [text for text in (*self._ends, *self._starts, *before) if text not in texts]
        found = yield from self.maybe(*texts, *soft)
        if found in soft:
            self.recovered(f"the end of a call is missing before {found}")
            self.unread(found)
        elif found is None:
            rest = self._text[self._at :]
            if not self._closed or not any(text.startswith(rest) for text in (*texts, *soft)):
                raise Broken
            self.recovered(
                f"the end of a call is {'cut off' if rest else 'missing'} where the output ends"
            )
            self._read(len(self._text))
        return found or ""

    def json(self, begun: str = "", keys: CallKeys | None = None) -> Waits:
        """Return the object or list that follows, read as JSON. Raises `Broken` if it is none.

        `begun`: its first characters where they were read already. `keys`: it is a call, or a list
        of calls, that says under these keys what it is, and is told as it comes.
        """
        feed = None if keys is None else call_followed(keys, self.begin)
        return read_json((yield from self.bracketed(begun, json=True, feed=feed)))

    def object(self, begun: str = "", keys: CallKeys | None = None) -> Waits:
        """Return the object that follows, read as `json` does. Raises `Broken` if it is none."""
        value = yield from self.json(begun, keys)
        if not isinstance(value, dict):
            raise Broken
        return value

    def arguments(self, told: Told, begun: str = "") -> Waits:
        """Return the object that follows, the arguments of a call that was begun.

        Raises `Broken` if it is none.
        """
        value = read_json(
            (yield from self.bracketed(begun, json=True, feed=arguments_followed(told)))
        )
        if not isinstance(value, dict):
            raise Broken
        return value

    def bracketed(self, begun: str = "", *, json: bool = False, feed: Feed | None = None) -> Waits:
        """Return the text from an opening bracket to the one that closes it, brackets inside
        strings left out.

        Of JSON the last brackets may be missing where what ends a call follows: its author thought
        it whole. `feed` takes the text as it is read.
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
            end = None
            broken = bool(special)
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
                    self.recovered(f"{brackets.missing} is missing before {found}")
                    return "".join(parts) + brackets.missing
            if broken or self._closed:
                raise Broken
            yield

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Read something that may be broken: calls made inside count if all of it is whole, else it
        is all text.

        So it is if no call was made. What was told of a call that breaks stays told, and the rest
        of it is text.
        """
        self._calls = []
        self._recovered = []
        self._kept = False
        self._told = None
        self._told_to = 0
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
        if calls or (whole and self._kept and not self._begun):
            self._raw = []
            self._shown.recovered(self._recovered)
            self._note(calls or [])
        else:
            if self._begun:
                self._shown.broke()
            self._put_back()
            self._settle()

    def keep(self) -> None:
        """Let what this attempt has read so far count, if there were calls: what breaks behind it
        takes none along.
        """
        if self._calls or (self._kept and not self._begun):
            self._shown.recovered(self._recovered)
            self._note(self._calls or [])
            self._calls = []
            self._recovered = []
            self._raw = []
            self._kept = True

    def begin(self, name: str, call_id: str | None = None, behind: int = 0) -> Told:
        """Return what takes the arguments of a call, and tells them as they come where that is
        wanted and its name is known.

        `call` must note it all the same: only then it is whole. Of several calls that count
        together the first is told. `behind`: how many of the characters that were read come behind
        its name.
        """
        tells = self._tells and self._calls == [] and not self._begun and bool(name.strip())
        schema = {} if self._parameters is None else self._parameters(name.strip())
        told = Told(name.strip(), call_id, schema, self._tell if tells else None)
        if tells:
            self._told = told
            self._told_from = self.place - behind
        return told

    def recovered(self, what: str) -> None:
        """Tell how something was read that is not as the format has it; in an attempt, if that
        comes to a call.
        """
        if self._calls is None:
            self._shown.recovered([what])
        else:
            self._recovered.append(what)

    def call(self, name: Any, arguments: Any, call_id: str | None = None) -> None:
        """Note one tool call; `arguments` is an object, or its JSON text. Raises `Broken` for what
        is none.

        Arguments get the types that the tool's schema states, out of a wrapper that it does not
        know.
        """
        if not isinstance(name, str) or not name.strip():
            raise Broken
        if isinstance(arguments, str):
            arguments = read_json(arguments or "{}")
        if not isinstance(arguments, dict):
            raise Broken
        if self._parameters is not None:
            fitting = fitting_arguments(arguments, self._parameters(name.strip()))
            if fitting != arguments:
                self.recovered("arguments fitted to the tool's schema")
            arguments = fitting
        found = Call(name.strip(), write_json(arguments), call_id)
        if not self._calls and not self._is_told(found):
            raise Broken
        if self._calls is not None:
            self._calls.append(found)
        else:
            self._raw = []
            self._note([found])

    # --- inside -----------------------------------------------------------------------------------

    def _show(self, ends: Sequence[str], kind: Kind) -> Waits:
        while True:
            at = self._at
            piece, marker = self._next(ends)
            self._shown.say(piece, kind, self._specials_in(at, at + len(piece)), at)
            self._raw = [] if marker is None else self._raw[-1:]
            if marker is not None or self._closed:
                return marker
            yield

    @property
    def _begun(self) -> bool:
        """Say whether some was told of a call of this attempt that is not yet whole."""
        return self._told is not None and self._told.begun

    def _tell(self, told: Told, text: str, behind: int) -> None:
        """Show some of a call's arguments, which end as many characters in front of what is read."""
        if not self._told_to:
            self._shown.begin(told.name, told.id)
        self._shown.arguments(text)
        self._told_to = self.place - behind

    def _is_told(self, call: Call) -> bool:
        """Say whether a call is the one that was told, if one was."""
        told = self._told
        if told is None or not told.begun:
            return True
        return (told.name, told.id) == (call.name, call.id) and call.arguments.startswith(told.said)

    def _note(self, calls: Sequence[Call]) -> None:
        """Show whole calls, of which the first may have been told in part."""
        said = "" if self._told is None else self._told.said
        self._told = None
        self._told_to = 0
        if calls:
            self._shown.call(calls, len(said))

    def _put_back(self) -> None:
        """Let a broken call be read again from where another may begin in it, which it is not to
        take along.
        """
        if not (self._raw and self._ends):
            return
        begun, *more = self._raw
        num_chars = sum(len(text) for text, _ in more)
        if num_chars > self._at:  # some of it came with earlier text
            at = self._at
            left = tuple(
                (start - at, end - at) for start, end in self._specials_in(at, len(self._text))
            )
            self._text, self._specials = joined([*more, (self._text[at:], left)])
            self._at = num_chars
            self._base = self._base + at - num_chars
        start = self._at - num_chars
        stop = self._at
        told = (
            max(0, self._told_from - self._base) if self._begun else 0
        )  # what begins it is not read again
        again = self._start_in(max(start, told), stop)
        num_reread = self._num_reread + stop - again
        if again == stop or num_reread > MOST_REREAD * (self._num_read - self._num_reread):
            return
        self._num_reread = num_reread
        self._shown.recovered(["a broken call in front of another"])
        self._at = start
        self._raw = [begun]
        self._read(again)

    def _start_in(self, start: int, stop: int) -> int:
        """Return where a call may begin in a stretch of the text, else where that ends.

        Brackets begin too much.
        """
        starts = [text for text in self._starts if len(text) > 1]
        if starts:
            for found in markers(*starts).pattern.finditer(self._text, start, stop):
                if self._is_marker(found[0], found.start()):
                    return found.start()
        return stop

    def _settle(self) -> None:
        """Show as content what was read for a call and is none, but for what was told as one."""
        skipped = (
            self._told_to - (self.place - sum(len(text) for text, _ in self._raw))
            if self._told_to
            else 0
        )
        for text, specials in self._raw:
            told = min(max(skipped, 0), len(text))
            self._shown.say(text[told:], Text, specials, told, broken=True)
            skipped -= told
        self._raw = []
