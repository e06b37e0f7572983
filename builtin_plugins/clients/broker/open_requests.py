"""Open requests of several API servers, and which of them gets which outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from core.api.execution import StepOutputs


@dataclass(slots=True, eq=False)
class OpenGroup:
    """An open request: one sequence or several."""

    session: Session
    """Its API server."""
    request_id: str
    """Id that its API server knows it by."""
    sequences: set[str]
    """Ids of its open sequences."""
    accepted: Future[Any] | None = None
    """Done when its engine has queued it."""


@dataclass(slots=True, eq=False)
class Session:
    """One API server, as long as its process lives."""

    send: Callable[[Any], None]
    """Sends it a message."""
    groups: set[OpenGroup] = field(default_factory=set)
    """Its open requests."""
    memory: bytes = b""
    """Last report of its memory."""


def request_id_of(sequence_ids: Sequence[str]) -> str:
    """Return the id of a request: sequences of several are numbered, as `ID#0`."""
    first = sequence_ids[0]
    return first if len(sequence_ids) == 1 else first.rpartition("#")[0]


class OpenRequests:
    """Open requests by the ids of their sequences and of their API servers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[str, OpenGroup] = {}
        self._by_id: dict[str, OpenGroup] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def ids(self) -> list[str]:
        """Return the ids that API servers know their requests by."""
        with self._lock:
            return list(self._by_id)

    def open(self, session: Session, sequence_ids: Sequence[str]) -> OpenGroup | None:
        """Return the new request of these sequences; None if an id is in use."""
        name = request_id_of(sequence_ids)
        group = OpenGroup(session, name, set(sequence_ids))
        with self._lock:
            if any(each in self._groups for each in sequence_ids):
                return None
            session.groups.add(group)
            self._by_id[name] = group
            self._groups.update(dict.fromkeys(sequence_ids, group))
        return group

    def close(self, group: OpenGroup) -> None:
        """Forget a request."""
        with self._lock:
            self._forget(group)

    def close_session(self, session: Session) -> list[OpenGroup]:
        """Forget the requests of an API server, and return them."""
        with self._lock:
            groups = list(session.groups)
            for group in groups:
                self._forget(group)
        return groups

    def close_id(self, request_id: str) -> OpenGroup | None:
        """Forget the request of an API server's id, and return it."""
        with self._lock:
            group = self._by_id.get(request_id)
            if group is not None:
                self._forget(group)
        return group

    def close_sequences(self, sequence_ids: Sequence[str]) -> tuple[list[str], list[OpenGroup]]:
        """Forget sequences; return those that were open, and the requests that ended with them."""
        with self._lock:
            ids = [name for name in sequence_ids if name in self._groups]
            groups = {self._groups[name] for name in ids}
            for group in groups:
                group.sequences.difference_update(ids)
                if not group.sequences:
                    self._forget(group)
            for name in ids:
                self._groups.pop(name, None)
        return ids, [group for group in groups if not group.sequences]

    def by_session(self, sequence_ids: Sequence[str]) -> Mapping[Session, list[str]]:
        """Return the open ones of some sequences by their API server."""
        found: dict[Session, list[str]] = {}
        with self._lock:
            for each in sequence_ids:
                if (group := self._groups.get(each)) is not None:
                    found.setdefault(group.session, []).append(each)
        return found

    def split(self, outputs: StepOutputs) -> Mapping[Session, StepOutputs]:
        """Return the outputs of each session, and forget requests that have ended."""
        parts: dict[Session, StepOutputs] = {}
        with self._lock:
            if outputs.counts:
                self._split_counted(outputs, parts)
            else:
                self._split_tokens(outputs, parts)
            for delta in outputs.deltas:
                group = self._groups.get(delta.request_id)
                if group is None:
                    continue
                _part(parts, group.session).deltas.append(delta)
                if delta.finish_reason is not None:
                    del self._groups[delta.request_id]
                    group.sequences.discard(delta.request_id)
                    if not group.sequences:
                        self._forget(group)
        return parts

    def _split_tokens(self, outputs: StepOutputs, parts: dict[Session, StepOutputs]) -> None:
        """Add sequences with a token each; the lock is held."""
        find = self._groups.get
        rows: dict[Session, tuple[list[str], list[int]]] = {}
        for name, token in zip(outputs.request_ids, outputs.token_ids, strict=True):
            group = find(name)
            if group is not None:
                row = rows.get(group.session)
                if row is None:
                    row = rows[group.session] = ([], [])
                row[0].append(name)
                row[1].append(token)
        parts.update({session: StepOutputs(*row, [], []) for session, row in rows.items()})

    def _split_counted(self, outputs: StepOutputs, parts: dict[Session, StepOutputs]) -> None:
        """Add sequences with several tokens each; the lock is held."""
        position = 0
        for name, count in zip(outputs.request_ids, outputs.counts, strict=True):
            end = position + count
            if (group := self._groups.get(name)) is not None:
                part = _part(parts, group.session)
                part.request_ids.append(name)
                part.token_ids.extend(outputs.token_ids[position:end])
                part.counts.append(count)
            position = end

    def _forget(self, group: OpenGroup) -> None:
        """Remove a request; the lock is held."""
        group.session.groups.discard(group)
        if self._by_id.get(group.request_id) is group:
            del self._by_id[group.request_id]
        for each in group.sequences:
            if self._groups.get(each) is group:
                del self._groups[each]


def _part(parts: dict[Session, StepOutputs], session: Session) -> StepOutputs:
    """Return the outputs of a session."""
    part = parts.get(session)
    if part is None:
        part = parts[session] = StepOutputs([], [], [], [])
    return part
