"""The errors that users meet. A message has the wrong value, the expectation, and an action."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Final

_NEAR: Final = 0.7
"""Minimum similarity of a misspelt name to the suggested one."""
_FAMILY_END: Final = re.compile(r"(?<=[a-z0-9A-Z])(?=For[A-Z])")
_SWITCH_START: Final = re.compile(r"^--(?:no-)?(?:(?:enable|disable)-)?")


class EngineError(Exception):
    """Base class of all errors that the engine raises on purpose."""


class ConfigError(EngineError, ValueError):
    """An invalid flag, file or keyword; raised before anything heavy starts."""


TOO_LONG: Final = "context_length_exceeded"
"""Error code of a prompt that exceeds the context length."""


class InvalidRequest(EngineError, ValueError):
    """A request refused at admission, with the field and its limit."""

    def __init__(self, field: str, message: str, code: str = "invalid_value") -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        """Name of the invalid request field, as the client spelt it."""
        self.code = code
        """Machine-readable error code, as in OpenAI's API where it has one."""

    def renamed(self, field: str) -> InvalidRequest:
        """Return the same error for a field that the client knows under another name."""
        return InvalidRequest(field, str(self).removeprefix(f"{self.field}: "), self.code)


class UnknownOption(ConfigError, TypeError):
    """A setting of this name does not exist; as a keyword it is Python's `TypeError`."""


class UnknownKeyword(InvalidRequest, TypeError):
    """A keyword that nothing reads, which is Python's `TypeError`."""


def prompt_too_long(message: str) -> InvalidRequest:
    """Return the error for a prompt that exceeds the context; `message` has the numbers."""
    return InvalidRequest(
        "prompt", f"{message} Shorten it, or set truncate_prompt_tokens.", TOO_LONG
    )


class PluginError(EngineError):
    """A plugin that is missing, broken or breaks a contract; the message names the plugin.

    The message is for operators: it has files and the exception. Clients get `client_message`.
    """

    culprit: str
    """Name of the plugin; empty if unknown."""

    def __init__(self, message: str, culprit: str = "", cause: Exception | None = None) -> None:
        super().__init__(message)
        self.culprit = culprit
        self.is_fault = not isinstance(cause, (RequestFailed, InvalidRequest))
        """True: a fault of the plugin; False: an error that it raised for the client."""
        self._answer = None if self.is_fault else str(cause)

    def client_message(self, request_id: str | None) -> str:
        """Return the message for a request's client: the plugin, and the id to find in the log."""
        if self._answer is not None:
            return self._answer
        plugin = f"plugin {self.culprit!r}" if self.culprit else "a plugin"
        where = "" if request_id is None else f" in request {request_id!r}"
        return f"{plugin} failed{where}; see the engine log."


def public_message(error: BaseException | None) -> str:
    """Return the reason of an engine's end for clients, without details of a plugin's exception."""
    if error is None:
        return "shut down"
    return error.client_message(None) if isinstance(error, PluginError) else str(error)


class ModelError(EngineError):
    """A checkpoint that cannot be served: what, where, what to do."""


NO_CHOICE: Final = (
    "every token is excluded, so none could be generated; allowed_token_ids, bad_words, "
    "logit_bias, min_tokens and structured_outputs of this request leave nothing"
)
"""Error of a request with parameters that leave no token to sample; detected in a step."""
NON_FINITE: Final = "the model produced non-finite numbers for this request"
"""Error of a request with logits that are NaN or infinite; detected in a step."""


class RequestFailed(EngineError):
    """One request failed inside the engine; its resources are free, others are not affected."""

    @property
    def is_own_fault(self) -> bool:
        """True: the request itself is the cause, so a retry is useless."""
        return str(self) == NO_CHOICE


class QueueFull(EngineError):
    """The waiting queue is full; the request can be retried later."""

    retry_after_s = 1
    """Suggested delay before a retry, in seconds."""


class RequestTimeout(EngineError):
    """A request exceeded its time limit; it was aborted and its resources are free."""


class LastStageFailed(EngineError):
    """A step succeeded on this pipeline stage and failed on the one that samples."""


class EngineDead(EngineError):
    """The engine or a process of it has ended; this object cannot serve requests any more."""


class ProcessKilled(EngineDead):
    """A process of the engine was killed from outside, or by the system's out-of-memory killer."""


class ProcessFrozen(ProcessKilled):
    """A process of the engine sent no heartbeat for too long and was killed."""


def run_all(calls: Iterable[Callable[[], object]]) -> None:
    """Run every call; then raise the first exception, with notes of the later ones."""
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


def error_by_name(kind: str, message: str) -> EngineError | None:
    """Return an engine error by its class name; None for other classes and `InvalidRequest`."""
    found = globals().get(kind)
    if not (isinstance(found, type) and issubclass(found, EngineError)):
        return None
    return None if found is InvalidRequest else found(message)


def did_you_mean(name: str, known: Iterable[str], limit: int = 1) -> str:
    """Return `; did you mean 'x'?` for up to `limit` similar known names, or an empty string.

    Ignores case. Names are compared without common starts (`--enable-`) and ends (`ForCausalLM`).
    """
    by_folded = {one.casefold(): one for one in known}
    longest = max(map(len, by_folded), default=0)
    if 2 * longest < _NEAR * (len(name) + longest):
        return ""  # too long to be near any: comparing would take a second for each 10 MB
    found = difflib.get_close_matches(name.casefold(), by_folded, n=limit, cutoff=_NEAR)
    near = [by_folded[one] for one in found if _family_is_near(name, by_folded[one])]
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _family_is_near(name: str, other: str) -> bool:
    one, two = (
        _SWITCH_START.sub("", _FAMILY_END.split(text, maxsplit=1)[0].casefold())
        for text in (name, other)
    )
    return difflib.SequenceMatcher(None, one, two).ratio() >= _NEAR
