"""Keeps one constraint: compiles it, and makes the masks of all outputs that are held to it, one
message after another.

It may be anywhere where it costs others nothing: `Keeper` knows no process and no limit.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from builtin_plugins.features.structured_outputs.messages import (
    Advance,
    Checked,
    Close,
    Closed,
    FromKeeper,
    Here,
    Made,
    Make,
    Masked,
    Open,
    Points,
    Refused,
    ToKeeper,
)
from builtin_plugins.features.structured_outputs.reasoning import Reasoning
from builtin_plugins.features.structured_outputs.rows import Mask, Row
from core.api import EngineError, InvalidRequest

if TYPE_CHECKING:
    from builtin_plugins.features.structured_outputs.tools import Tools
    from builtin_plugins.features.structured_outputs.wire import Wire
    from core.api import Constraint, Grammar

NUM_LINES: Final = 1 << 14
"""Outputs under one constraint at a time; memory is taken for those that are there."""
_TOGETHER_S: Final = 0.001
"""Masks made within this time are announced together."""


def board_bytes(num_words: int) -> int:
    """Return the size of the memory that the masks of one constraint lie in."""
    return NUM_LINES * num_words * 4


def board_of(memory: mmap.mmap, num_words: int) -> Mask:
    """Return the masks [lines, words] that lie in a memory."""
    return np.frombuffer(memory, dtype=np.int32).reshape(NUM_LINES, num_words)


class Keeper:
    """The outputs under one constraint."""

    def __init__(self, tools: Tools, board: Mask) -> None:
        self._tools = tools
        self._board = board
        self._rows: dict[int, Row] = {}
        self._constraint: Constraint
        self._backend = ""
        self._grammar: Grammar

    def make(self, make: Make) -> Iterator[FromKeeper]:
        """Let the first backend that can hold outputs to the constraint compile it."""
        self._constraint = make.constraint
        field = f"structured_outputs.{make.constraint.kind}"
        try:
            self._backend = self._choose(make)
            yield Checked(self._backend)
            self._grammar = self._tools.backend(self._backend).compile(make.constraint)
        except InvalidRequest as error:
            yield Refused(error.field, str(error).removeprefix(f"{error.field}: "))
        except MemoryError:
            yield Refused(field, "takes more memory to compile than it may")
        except EngineError as error:
            yield Refused("", str(error))
        except Exception as error:  # noqa: BLE001 - a backend may raise anything; those who wait are told
            yield Refused(
                "",
                f"{field}: {self._backend or 'a backend'} has failed at this constraint: {error}",
            )
        else:
            yield Made(time.process_time())

    def _choose(self, make: Make) -> str:
        """Return the first backend that serves the constraint.

        Raises what the first one says when none does.
        """
        refusal: InvalidRequest | None = None
        for name in make.backends:
            try:
                self._tools.backend_class(name).check(make.constraint)
            except InvalidRequest as error:
                refusal = refusal or error
            else:
                return name
        raise refusal or InvalidRequest("structured_outputs", "no grammar backend is loaded.")

    def take(self, message: ToKeeper) -> FromKeeper:
        """Do what a message asks."""
        begun_s = time.thread_time()
        more: list[bytes] = []
        if isinstance(message, Make):
            raise TypeError("a keeper keeps the one grammar that it was begun with.")
        if isinstance(message, Close):
            self._rows.pop(message.line, None)
            return Closed(message.line)
        error = ""
        try:
            if isinstance(message, Open):
                self._rows[message.line] = self._open(message)
            elif isinstance(message, Advance):
                self._rows[message.line].advance(message.tokens)
            else:
                more = self._points(self._rows[message.line], message)
            failure = self._rows[message.line].error
            if failure is not None:
                raise failure
        except EngineError as raised:
            error = str(raised)
        except Exception as raised:  # noqa: BLE001 - plugin code; the request fails with it, named
            kind = f"structured_outputs.{self._constraint.kind}"
            error = f"{kind}: {self._backend} has failed at this request: {raised}"
        return Masked(message.line, time.thread_time() - begun_s, time.process_time(), more, error)

    def _open(self, message: Open) -> Row:
        tools = self._tools
        starts, ends = tools.reasoning
        if starts and message.skip_reasoning:
            ends = ()
        reasoning = Reasoning(starts, ends, tools.tokenizer, tools.vocabulary, message.prompt_end)
        row = Row(self._grammar.start(), message.stops, reasoning, tools.masks)
        row.mask = self._board[message.line]
        row.replay(message.output)
        return row

    def _points(self, row: Row, message: Points) -> list[bytes]:
        row.settle(message.back, message.tokens)
        return [mask.tobytes() for mask in row.points(message.guesses)[1:]]


def keep(wire: Wire[ToKeeper], keeper: Keeper, pid: int) -> None:
    """Serve until the other end closes; ends with the first refusal."""
    wire.send([Here(pid)])
    rest = wire.receive(wait=True)
    make = rest.pop(0) if rest else None
    if not isinstance(make, Make):
        return
    for said in keeper.make(make):
        wire.send([said])
        wire.drain()
        if isinstance(said, Refused):
            return
    while not wire.is_closed:
        said_s = time.monotonic()
        answers = []
        for message in rest:
            answers.append(keeper.take(message))
            if time.monotonic() - said_s > _TOGETHER_S:
                wire.send(answers)
                wire.drain()
                said_s = time.monotonic()
                answers = []
        if answers:
            wire.send(answers)
            wire.drain()
        rest = wire.receive(wait=True)
