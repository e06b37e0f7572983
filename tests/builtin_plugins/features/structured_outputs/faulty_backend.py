"""A grammar backend that obeys its regex: `slow 20` takes 20 ms per mask, `held FILE` waits until
there is no such file.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from builtin_plugins.grammar_backends.api import Constraint, Vocabulary
from core.api import Entry, InvalidRequest, hookimpl


@hookimpl
def engine_grammar_backends() -> list[Entry]:
    return [Entry("strange", Strange, "follows the command in its regex")]


def work(seconds: float) -> None:
    begun_s = time.thread_time()
    while time.thread_time() - begun_s < seconds:
        pass


class Strange:
    """Allows small letters: the next eight letters after the number of letters so far."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = {
            word[0]: token for token, word in enumerate(vocabulary.tokens) if len(word) == 1
        }
        self.num_words = -(-len(vocabulary.tokens) // 32)

    @staticmethod
    def check(constraint: Constraint) -> None:
        if constraint.text == "refused":
            raise InvalidRequest("structured_outputs.regex", "is not to my liking.")

    def compile(self, constraint: Constraint) -> Any:
        what, _, amount = constraint.text.partition(" ")
        if what == "broken":
            raise ValueError("no grammar today")
        if what == "work":
            work(3600.0 if not amount else float(amount) / 1000)
        if what == "wait":
            time.sleep(3600)
        held = [bytearray(os.urandom(1 << 20)) for _ in range(4096)] if what == "take" else []
        if what == "held":
            return Letters(self, what, 0.0, held, amount)
        return Letters(self, what, float(amount or 0) / 1000, held)


class Letters:
    memory_bytes = 1

    def __init__(
        self, backend: Strange, what: str, amount: float, held: list[bytearray], file: str = ""
    ) -> None:
        self.backend = backend
        self.what = what
        self.amount = amount
        self.held = held
        self.file = file

    def start(self) -> Any:
        if self.what == "stateless":
            raise RuntimeError("no state today")
        return State(self)


class State:
    def __init__(self, letters: Letters) -> None:
        self.letters = letters
        self.count = 0

    def accept(self, token: int) -> bool:
        self.count += 1
        return True

    def rollback(self, k: int) -> None:
        self.count -= k

    def fill(self, mask: np.ndarray[Any, Any]) -> None:
        what = self.letters.what
        amount = self.letters.amount
        if what in ("slow", "sticky"):
            work(amount)
        while self.letters.file and os.path.exists(self.letters.file):
            time.sleep(0.001)
        if self.count >= 3:
            if what == "tires":
                raise InvalidRequest("structured_outputs", "cannot be held: too many states.")
            if what in ("stuck", "sticky"):
                work(3600.0)
            if what == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
        mask[:] = 0
        for letter in range(self.count, self.count + 8):
            token = self.letters.backend.tokens[ord("a") + letter % 26]
            mask.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)

    def is_done(self) -> bool:
        return False

    def replay(self, tokens: Sequence[int]) -> bool:
        self.count += len(tokens)
        return True
