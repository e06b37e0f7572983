"""What the next API process needs to continue streamed answers: requests and outputs so far.

The ledger is in memory that the parent process preserves. An answer is made again from its
request and recorded outputs, so its events are the same; then come the outputs that the engine,
which goes on meanwhile, sends again from the first one on.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from core.api import CompletionOutput, RequestOutput

if TYPE_CHECKING:
    from builtin_plugins.servers.api import Parent
    from core.api.serving import ServedEngine

log = logging.getLogger(__name__)

NAME: Final = "runs"
"""Name of the preserved state."""
MAX_BODY_BYTES: Final = 256 * 1024
"""Largest body of a request that is recorded."""
MAX_OWNER_BYTES: Final = 16 * 1024 * 1024
"""Largest size of the records of an owner's open answers."""
MAX_BYTES: Final = 256 * 1024 * 1024
"""Largest size of the records of all open answers."""
SPARE_BYTES: Final = 1024 * 1024
"""Size of records of ended answers from which on they are removed from the file."""
_LENGTH_BYTES: Final = 4


class Opened(msgspec.Struct, array_like=True, tag=True):
    """An answer that can be continued by another process."""

    number: int
    owner: str
    client: str
    path: str
    body: bytes
    answer_id: str
    run_id: str
    """Id of the engine request."""
    created: int


class Completion(msgspec.Struct, array_like=True):
    """New text and tokens of one sequence."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: int | str | None
    num_tokens: int
    special_spans: list[tuple[int, int]]


class Consumed(msgspec.Struct, array_like=True, tag=True):
    """An output of which the events were made."""

    number: int
    completions: list[Completion]
    finished: bool
    num_cached_tokens: int | None


class CallId(msgspec.Struct, array_like=True, tag=True):
    """Id of a tool call in an answer."""

    number: int
    call_id: str


class Ended(msgspec.Struct, array_like=True, tag=True):
    """The answer is complete, or was given up."""

    number: int


Record = Opened | Consumed | CallId | Ended


class RecordedRun:
    """One answer in the ledger: made for the first time, or again after a restart."""

    def __init__(self, ledger: RunLedger, opened: Opened) -> None:
        self.opened = opened
        self.outputs_so_far: deque[Consumed] = deque()
        self.call_ids: deque[str] = deque()
        self._ledger = ledger
        self._num_ids = 0
        self._is_open = True

    @property
    def seed(self) -> int:
        """Seed of an answer without one, the same whenever it is made."""
        digest = hashlib.sha256(self.opened.run_id.encode()).digest()
        return int.from_bytes(digest[:7], "big")

    def next_id(self) -> str:
        """Return the next id within the answer, the same whenever it is made."""
        self._num_ids += 1
        return hashlib.sha256(f"{self.opened.run_id}:{self._num_ids}".encode()).hexdigest()[:32]

    def call_id(self, given: str) -> str:
        """Return the id of the next call: the recorded one, or the given one."""
        if self.call_ids:
            return self.call_ids.popleft()
        self._write(CallId(self.opened.number, given))
        return given

    def close(self) -> None:
        """Remove the answer: it has ended, or cannot be continued."""
        if self._is_open:
            self._write(Ended(self.opened.number))
            self._is_open = False
            self._ledger.forget(self)

    async def outputs(
        self, live: AsyncGenerator[RequestOutput], prompt_token_ids: list[int]
    ) -> AsyncGenerator[RequestOutput]:
        """Yield the recorded outputs, then what `live`, the whole answer, has in addition."""
        num_chars: dict[int, int] = {}
        num_tokens: dict[int, int] = {}
        while self.outputs_so_far:
            recorded = self.outputs_so_far.popleft()
            for each in recorded.completions:
                num_chars[each.index] = num_chars.get(each.index, 0) + len(each.text)
                num_tokens[each.index] = num_tokens.get(each.index, 0) + len(each.token_ids)
            yield _output(self.opened.run_id, recorded, prompt_token_ids)
            if recorded.finished:
                await live.aclose()
                return
        async with aclosing(live):
            async for output in live:
                completions = []
                for completion in output.outputs:
                    index = completion.index
                    rest, num_chars[index], num_tokens[index] = _after(
                        completion, num_chars.get(index, 0), num_tokens.get(index, 0)
                    )
                    if rest.text or rest.token_ids or rest.finish_reason is not None:
                        completions.append(rest)
                if not completions and not output.finished:
                    continue
                rest_output = replace(output, outputs=completions)
                self._write(_consumed(self.opened.number, rest_output))
                yield rest_output

    def _write(self, record: Record) -> None:
        if self._is_open and not self._ledger.write(self.opened.owner, record):
            self.close()


class RunLedger:
    """The records of all open answers of a server."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._runs: dict[int, RecordedRun] = {}
        self._num_runs = 0
        self._records: dict[int, list[bytes]] = {}
        """Encoded records of the open answers."""
        self._bytes: dict[str, int] = {}
        """Size of the records of open answers, by owner."""
        self._descriptor = -1
        self._file_bytes = 0
        found = parent.preserved(NAME)
        if found is not None and found.descriptors:
            self._load(found.descriptors[0])
            os.close(found.descriptors[0])
        self._rewrite()
        self._unfinished = list(self._runs.values())

    @classmethod
    def shared(cls, engine: ServedEngine) -> RunLedger | None:
        """Return the ledger of a server; None if nothing outlives its process."""
        registry = engine.registry
        parent: Parent | None = registry.shared("parent", lambda: None)
        if parent is None or not hasattr(os, "memfd_create"):
            return None
        ledger: RunLedger = registry.shared("run ledger", lambda: cls(parent))
        return ledger

    def take_unfinished(self, path: str) -> list[RecordedRun]:
        """Return, once, the answers of a path that an earlier process has not completed."""
        found = [each for each in self._unfinished if each.opened.path == path]
        self._unfinished = [each for each in self._unfinished if each.opened.path != path]
        return found

    def open(
        self,
        owner: str,
        client: str,
        path: str,
        body: bytes,
        answer_id: str,
        run_id: str,
        created: int,
    ) -> RecordedRun | None:
        """Record a request; None if it is too large, or its owner has too many records."""
        if len(body) > MAX_BODY_BYTES or not self._has_room(owner, len(body)):
            return None
        self._num_runs += 1
        opened = Opened(self._num_runs, owner, client, path, body, answer_id, run_id, created)
        run = RecordedRun(self, opened)
        self._runs[opened.number] = run
        self.write(owner, opened)
        return run

    def write(self, owner: str, record: Record) -> bool:
        """Append a record; return False if there is no room for it."""
        encoded = msgspec.msgpack.encode(record)
        if not self._has_room(owner, len(encoded)) and not isinstance(record, Ended):
            return False
        self._append(encoded)
        self._records.setdefault(record.number, []).append(encoded)
        self._bytes[owner] = self._bytes.get(owner, 0) + len(encoded)
        return True

    def forget(self, run: RecordedRun) -> None:
        """Hold the records of an answer no longer."""
        opened = run.opened
        if self._runs.pop(opened.number, None) is not None:
            size = sum(map(len, self._records.pop(opened.number)))
            self._bytes[opened.owner] -= size
            if not self._bytes[opened.owner]:
                del self._bytes[opened.owner]
        if self._file_bytes > 2 * sum(self._bytes.values()) + SPARE_BYTES:
            self._rewrite()

    def _has_room(self, owner: str, size: int) -> bool:
        own = self._bytes.get(owner, 0) + size
        return own <= MAX_OWNER_BYTES and sum(self._bytes.values()) + size <= MAX_BYTES

    def _append(self, encoded: bytes) -> None:
        data = len(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded
        os.write(self._descriptor, data)
        self._file_bytes += len(data)

    def _load(self, descriptor: int) -> None:
        """Read the records of the process before; the last one may be incomplete."""
        try:
            for encoded in _records(os.pread(descriptor, os.fstat(descriptor).st_size, 0)):
                self._note(encoded)
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("streams of the API process before cannot be continued: %s", error)

    def _note(self, encoded: bytes) -> None:
        record: Record = msgspec.msgpack.decode(encoded, type=Record)
        number = record.number
        self._num_runs = max(self._num_runs, number)
        if isinstance(record, Opened):
            self._runs[number] = RecordedRun(self, record)
        run = self._runs.get(number)
        if run is None:
            return
        owner = run.opened.owner
        self._records.setdefault(number, []).append(encoded)
        self._bytes[owner] = self._bytes.get(owner, 0) + len(encoded)
        if isinstance(record, Consumed):
            run.outputs_so_far.append(record)
        elif isinstance(record, CallId):
            run.call_ids.append(record.call_id)
        elif isinstance(record, Ended):
            self.forget(run)

    def _rewrite(self) -> None:
        """Write the records of the open answers to a new file, and preserve it."""
        before = self._descriptor
        self._descriptor = os.memfd_create(NAME)
        self._file_bytes = 0
        for records in self._records.values():
            for encoded in records:
                self._append(encoded)
        self._parent.preserve(NAME, descriptors=[self._descriptor])
        if before >= 0:
            os.close(before)


def _records(data: bytes) -> Iterator[bytes]:
    position = 0
    while position + _LENGTH_BYTES <= len(data):
        length = int.from_bytes(data[position : position + _LENGTH_BYTES], "big")
        position += _LENGTH_BYTES
        if position + length > len(data):
            return
        yield data[position : position + length]
        position += length


def _after(
    completion: CompletionOutput, num_chars: int, num_tokens: int
) -> tuple[CompletionOutput, int, int]:
    """Return a completion without its first characters and tokens, and how many are left."""
    chars = min(num_chars, len(completion.text))
    tokens = min(num_tokens, len(completion.token_ids))
    if not chars and not tokens:
        return completion, num_chars, num_tokens
    spans: Sequence[tuple[int, int]] = [
        (start - chars, end - chars) for start, end in completion.special_spans if start >= chars
    ]
    rest = replace(
        completion,
        text=completion.text[chars:],
        token_ids=list(completion.token_ids)[tokens:],
        special_spans=spans,
    )
    return rest, num_chars - chars, num_tokens - tokens


def _consumed(number: int, output: RequestOutput) -> Consumed:
    completions = [
        Completion(
            each.index,
            each.text,
            list(each.token_ids),
            each.finish_reason,
            each.stop_reason,
            each.num_tokens,
            [(start, end) for start, end in each.special_spans],
        )
        for each in output.outputs
    ]
    return Consumed(number, completions, output.finished, output.num_cached_tokens)


def _output(run_id: str, recorded: Consumed, prompt_token_ids: list[int]) -> RequestOutput:
    completions = [
        CompletionOutput(
            index=each.index,
            text=each.text,
            token_ids=each.token_ids,
            finish_reason=each.finish_reason,
            stop_reason=each.stop_reason,
            num_tokens=each.num_tokens,
            special_spans=each.special_spans,
        )
        for each in recorded.completions
    ]
    return RequestOutput(
        run_id,
        None,
        prompt_token_ids,
        None,
        completions,
        recorded.finished,
        num_cached_tokens=recorded.num_cached_tokens,
    )
