"""Whether a place that blocks go to is worth asking: one that fails or does not answer is left
alone for a while.
"""

from __future__ import annotations

import logging
from typing import Final

from builtin_plugins.kv_connectors.messages import UNLIKE
from builtin_plugins.kv_connectors.names import DAMAGED, GONE

log = logging.getLogger(__name__)
PATIENCE: Final = 3
"""Failures one after the other that are nobody's trouble."""
WATCHED: Final = 64
"""Blocks that must come back right, one behind the other, before damage is not told any more: a
place that has damaged one may others.
"""
SHORTEST_REST = 32
LONGEST_REST = 4096
"""Steps for which it is left alone, doubled each time it fails again."""


class Trouble:
    """Counts failures. Time is counted in steps, so that the same calls always come to the same."""

    def __init__(self, name: str, verb: str) -> None:
        """`verb`: what it is asked to do."""
        self._name = name
        self._verb = verb
        self.reason = ""
        """What went wrong last; empty: all is well."""
        self._failures = 0
        self._rest = 0
        self._until = 0
        self._watched = 0
        """Blocks that must be right before it is well again."""
        self._stuck: set[int] = set()
        """Orders that take too long."""

    @property
    def shown(self) -> str:
        """Return the kind of what went wrong, without what is another each time; of engines that do
        not fit, in what they differ.
        """
        return (
            self.reason.removeprefix(UNLIKE)
            if self.reason.startswith(UNLIKE)
            else self.reason.partition(":")[0]
        )

    @property
    def is_degraded(self) -> bool:
        """Say whether it failed lately and has not worked since, or has not worked for long since
        it damaged something.
        """
        return bool(self._stuck or self._watched) or self._failures >= PATIENCE

    def may_ask(self, step: int) -> bool:
        """Say whether to begin something in this step."""
        return not self._stuck and step >= self._until

    def late(self, ids: list[int], step: int) -> None:
        """It still works on these orders: nothing is begun before it is done with them."""
        if ids:
            self._stuck.update(ids)
            self._failed("it takes longer than timeout_s", step, PATIENCE)

    def dropped(self, id_: int) -> None:
        """An order was called off: that says nothing of it."""
        self._stuck.discard(id_)

    def ended(self, id_: int, error: str, step: int) -> None:
        """It is done with an order."""
        self._stuck.discard(id_)
        if error.startswith(DAMAGED):
            self._watched = WATCHED
        elif not error:
            self._watched = max(0, self._watched - 1)
        if error:
            # Who says at once that a block is gone works: what is written anew is found there.
            self._failed(
                error,
                step,
                PATIENCE if error.startswith(UNLIKE) else 1,
                rests=not error.startswith(GONE),
            )
        elif self.reason and not self._stuck:
            if self._rest:
                log.info("%s by the KV connector %s works again", self._verb, self._name)
            self._failures = self._rest = self._until = 0
            self.reason = self.reason if self._watched else ""

    def _failed(self, reason: str, step: int, count: int, *, rests: bool = True) -> None:
        self._failures += count
        self.reason = reason
        if rests and self._failures >= PATIENCE and step >= self._until:
            if not self._rest:
                log.warning(
                    "%s by the KV connector %s fails; it is left alone for a while: %s",
                    self._verb,
                    self._name,
                    reason,
                )
            self._rest = min(LONGEST_REST, max(SHORTEST_REST, 2 * self._rest))
            self._until = step + self._rest
