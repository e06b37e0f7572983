"""Every error a user of the engine can meet. Knows words, no machinery.

A message says what was wrong with its value, what was expected, and what to do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Final

_NEAR: Final = 0.7
"""Similarity from which one name may have been meant by another."""
_FAMILY_END: Final = re.compile(r"(?<=[a-z0-9A-Z])(?=For[A-Z])")


class EngineError(Exception):
    """Base of everything the engine raises on purpose."""


class ConfigError(EngineError, ValueError):
    """A flag, file or keyword that cannot work; raised before anything heavy starts."""


TOO_LONG: Final = "context_length_exceeded"
"""Code of a refusal of a prompt that has more tokens than the context holds."""


class InvalidRequest(EngineError, ValueError):
    """A request refused at the edge: names the field and the limit; the engine never saw it."""

    def __init__(self, field: str, message: str, code: str = "invalid_value") -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        """Name of the offending request field, as the client spelt it."""
        self.code = code
        """What programs tell refusals apart by: OpenAI's codes, where it has one."""

    def renamed(self, field: str) -> InvalidRequest:
        """Return the same refusal of a field that the client knows under another name."""
        return InvalidRequest(field, str(self).removeprefix(f"{self.field}: "), self.code)


def prompt_too_long(message: str) -> InvalidRequest:
    """Return the refusal of a prompt that has more tokens than the context holds; `message` says
    how many.
    """
    return InvalidRequest(
        "prompt", f"{message} Shorten it, or set truncate_prompt_tokens.", TOO_LONG
    )


class PluginError(EngineError):
    """A plugin that is missing, broken or breaks a contract; always names whose it is.

    The message is for whoever runs the engine: it has files and the exception. `told` is for
    clients.
    """

    culprit: str
    """The plugin's name; empty where it is not known."""

    def __init__(self, message: str, culprit: str = "", cause: Exception | None = None) -> None:
        super().__init__(message)
        self.culprit = culprit
        self.is_fault = not isinstance(cause, (RequestFailed, InvalidRequest))
        """The plugin is to blame; else it has said something to whoever asked."""
        self._answer = None if self.is_fault else str(cause)

    def told(self, request_id: str | None) -> str:
        """Return what the client of a request is told: whose fault it is, and the id under which
        the log has the rest.
        """
        if self._answer is not None:
            return self._answer
        who = f"plugin {self.culprit!r}" if self.culprit else "a plugin"
        where = "" if request_id is None else f" in request {request_id!r}"
        return f"{who} failed{where}; the engine's log says more."


def shown(error: BaseException | None) -> str:
    """Return why an engine has ended, in words that clients may read: of a plugin's exception
    nothing but whose it is.
    """
    if error is None:
        return "shut down"
    return error.told(None) if isinstance(error, PluginError) else str(error)


class ModelError(EngineError):
    """A checkpoint that cannot be served: what, where, what to do."""


NO_CHOICE: Final = (
    "every token is excluded, so none could be generated; allowed_token_ids, bad_words, "
    "logit_bias, min_tokens "
    "and structured_outputs of this request leave nothing"
)
"""Of a request that cannot go on because of what it asks for: found out in a step, when all of it
has been applied.
"""


class RequestFailed(EngineError):
    """One request failed inside the engine; its resources are back, its neighbours unharmed."""

    @property
    def is_own_fault(self) -> bool:
        """Say whether what was asked for cannot be, so that asking again is in vain."""
        return str(self) == NO_CHOICE


class QueueFull(EngineError):
    """As many requests wait as may; this one can be sent again later."""

    retry_after_s = 1
    """What to tell a client that asks when."""


class RequestTimeout(EngineError):
    """A request took longer than it may; it has been ended, and its resources are back."""


class LastStageFailed(EngineError):
    """A step that went well here, but not on the stage that samples."""


class EngineDead(EngineError):
    """The engine has ended, or a process it needs; no request can be served by this object any
    more.
    """


class ProcessKilled(EngineDead):
    """A process of the engine was ended from outside: killed by somebody, or by the system for want
    of memory.
    """


class ProcessFrozen(ProcessKilled):
    """A process of the engine gave no sign of life for too long and was killed for it."""


def make_all(calls: Iterable[Callable[[], object]]) -> None:
    """Make every call, whatever others raise; then raise what the first has raised, with notes of
    what came after it.
    """
    first: Exception | None = None
    for call in calls:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised below
            if first is None:
                first = error
            else:
                first.add_note(f"Then {type(error).__name__}: {error}")
    if first is not None:
        raise first


def error_called(kind: str, message: str) -> EngineError | None:
    """Return an exception of ours by the name of its class; None if it is none, or needs more than
    a message.
    """
    ours = globals().get(kind)
    if not (isinstance(ours, type) and issubclass(ours, EngineError)) or ours is InvalidRequest:
        return None
    return ours(message)


def did_you_mean(name: str, known: Iterable[str], most: int = 1) -> str:
    """Return `; did you mean 'x'?` for the nearest known name, or for the `most` nearest, or an
    empty string.

    Capitals count for nothing. Names of architectures are alike only where the families are: the
    ends of all are.
    """
    by_folded = {one.casefold(): one for one in known}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=most, cutoff=_NEAR)
    near = [by_folded[one] for one in found if _family_is_near(name, by_folded[one])]
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _family_is_near(name: str, other: str) -> bool:
    one, two = (_FAMILY_END.split(text, maxsplit=1)[0].casefold() for text in (name, other))
    return difflib.SequenceMatcher(None, one, two).ratio() >= _NEAR
