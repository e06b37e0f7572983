"""The body of a grammar process: compiles one constraint and makes the masks of its outputs.

Knows no operating system process and no limit, so it also runs in a thread.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from builtin_plugins.features.structured_outputs.grammar_protocol import (
    AdvanceOutput,
    CloseOutput,
    CompileGrammar,
    ConstraintAccepted,
    ConstraintRejected,
    FromGrammar,
    GrammarCompiled,
    MaskFilled,
    OpenOutput,
    OutputClosed,
    PointMasks,
    ProcessStarted,
    ToGrammar,
)
from builtin_plugins.features.structured_outputs.grammar_row import (
    GrammarRow,
    Mask,
)
from builtin_plugins.features.structured_outputs.reasoning_tracker import (
    NO_REASONING,
    ReasoningTracker,
)
from builtin_plugins.output_parsers.api import ParseRequest
from core.api import EngineError, InvalidRequest

if TYPE_CHECKING:
    from builtin_plugins.features.structured_outputs.grammar_protocol import Wire
    from builtin_plugins.features.structured_outputs.resources import GrammarResources
    from builtin_plugins.grammar_backends.api import Constraint, Grammar

MAX_OUTPUTS: Final = 1 << 14
"""Maximum concurrent outputs of one constraint; memory is used by existing ones only."""
_BATCH_S: Final = 0.001
"""Masks made within this time are sent together."""


def mask_buffer_bytes(num_words: int) -> int:
    """Return the size of the shared memory for the masks of one constraint."""
    return MAX_OUTPUTS * num_words * 4


def mask_buffer(memory: mmap.mmap, num_words: int) -> Mask:
    """Return the masks [outputs, words] in a shared memory."""
    return np.frombuffer(memory, dtype=np.int32).reshape(MAX_OUTPUTS, num_words)


class GrammarProcess:
    """The outputs under one constraint."""

    def __init__(self, resources: GrammarResources, buffer: Mask) -> None:
        self._resources = resources
        self._buffer = buffer
        self._rows: dict[int, GrammarRow] = {}
        self._constraint: Constraint
        self._backend = ""
        self._grammar: Grammar

    def compile(self, message: CompileGrammar) -> Iterator[FromGrammar]:
        """Compile the constraint with the first backend that supports it."""
        self._constraint = message.constraint
        field = f"structured_outputs.{message.constraint.kind}"
        try:
            self._backend = self._choose(message)
            yield ConstraintAccepted(self._backend)
            backend = self._resources.backend(self._backend)
            self._grammar = backend.compile(message.constraint)
        except InvalidRequest as error:
            yield ConstraintRejected(error.field, str(error).removeprefix(f"{error.field}: "))
        except MemoryError:
            yield ConstraintRejected(field, "takes more memory to compile than allowed")
        except EngineError as error:
            yield ConstraintRejected("", str(error))
        except Exception as error:  # noqa: BLE001 - a backend may raise anything
            name = self._backend or "a backend"
            yield ConstraintRejected("", f"{field}: {name} failed for this constraint: {error}")
        else:
            yield GrammarCompiled(time.process_time())

    def _choose(self, message: CompileGrammar) -> str:
        """Return the first backend that supports the constraint. Raises the first rejection."""
        refusal: InvalidRequest | None = None
        for name in message.backends:
            try:
                self._resources.backend_class(name).check(message.constraint)
            except InvalidRequest as error:
                refusal = refusal or error
            else:
                return name
        raise refusal or InvalidRequest("structured_outputs", "no grammar backend is loaded.")

    def handle(self, message: ToGrammar) -> FromGrammar:
        """Execute a message and return the reply."""
        begun_s = time.thread_time()
        more: list[bytes] = []
        if isinstance(message, CompileGrammar):
            raise TypeError("a grammar process compiles one grammar.")
        if isinstance(message, CloseOutput):
            self._rows.pop(message.line, None)
            return OutputClosed(message.line)
        error = ""
        is_refusal = False
        try:
            if isinstance(message, OpenOutput):
                self._rows[message.line] = self._open(message)
            elif isinstance(message, AdvanceOutput):
                self._rows[message.line].advance(message.tokens)
            else:
                more = self._points(self._rows[message.line], message)
            failure = self._rows[message.line].error
            if failure is not None:
                raise failure
        except InvalidRequest as raised:
            is_refusal = True
            error = str(raised).removeprefix(f"{raised.field}: ")
        except EngineError as raised:
            error = str(raised)
        except Exception as raised:  # noqa: BLE001 - plugin code; the request fails with its name
            kind = f"structured_outputs.{self._constraint.kind}"
            error = f"{kind}: {self._backend} failed for this request: {raised}"
        used_s = time.process_time()
        row = self._rows.get(message.line)
        optional = [] if row is None else row.optional
        work_s = time.thread_time() - begun_s
        return MaskFilled(message.line, work_s, used_s, more, error, optional, is_refusal)

    def _open(self, message: OpenOutput) -> GrammarRow:
        resources = self._resources
        bounds = NO_REASONING
        if resources.reasoning is not None:
            bounds = message.reasoning or resources.reasoning.bounds(
                ParseRequest(prompt_end=resources.tokenizer.decode(message.prompt_end))
            )
        if bounds.at_start == "optional" and message.skip_reasoning:
            bounds = NO_REASONING
        reasoning = ReasoningTracker(bounds, resources.texts)
        row = GrammarRow(self._grammar.start(), message.stops, reasoning, resources.masks)
        row.mask = self._buffer[message.line]
        row.replay(message.output)
        return row

    def _points(self, row: GrammarRow, message: PointMasks) -> list[bytes]:
        row.settle(message.back, message.tokens)
        return [mask.tobytes() for mask in row.points(message.draft_tokens)[1:]]


def serve_grammar(wire: Wire[ToGrammar], process: GrammarProcess, pid: int) -> None:
    """Serve messages until the other end closes; returns after a rejection."""
    wire.send([ProcessStarted(pid)])
    rest = wire.receive(wait=True)
    first = rest.pop(0) if rest else None
    if not isinstance(first, CompileGrammar):
        return
    for reply in process.compile(first):
        wire.send([reply])
        wire.drain()
        if isinstance(reply, ConstraintRejected):
            return
    while not wire.is_closed:
        sent_s = time.monotonic()
        replies: list[FromGrammar] = []
        for message in rest:
            replies.append(process.handle(message))
            if time.monotonic() - sent_s > _BATCH_S:
                wire.send(replies)
                wire.drain()
                sent_s = time.monotonic()
                replies = []
        if replies:
            wire.send(replies)
            wire.drain()
        rest = wire.receive(wait=True)
