"""Extensions with every result checked as it is returned; a breach of the contract is
written down.

An error inside an extension would only fail its request, so breaches are collected for
the caller that runs the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import msgspec
import torch

from core.plugin import Registry
from core.testing.no_readback import ReadBack, no_readback

_PAYLOADS: Final = ("planned", "after_sample")
_TRUTHS: Final = ("finished", "pending", "skips_step", "is_active")
_ON_DEVICE: Final = ("before_forward", "after_forward", "before_sample", "sampled")


def watch(registry: Registry) -> list[str]:
    """Have the halves that a registry gives looked at; return the list to which breaches
    are added.
    """
    breaches: list[str] = []
    of_scheduler = registry.scheduler_extensions
    of_workers = registry.runner_extensions
    halves: Any = registry
    halves.scheduler_extensions = lambda config: tuple(
        _Watched(each, breaches) for each in of_scheduler(config)
    )
    halves.runner_extensions = lambda config: tuple(
        (blame, _Watched(each, breaches)) for blame, each in of_workers(config)
    )
    return breaches


class _Watched:
    """In all else the half that it stands for."""

    def __init__(self, half: Any, breaches: list[str]) -> None:
        self._half = half
        self._breaches = breaches

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._half, name)
        return self._looked_at(name, found) if callable(found) else found

    def _looked_at(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call, updated=())
        def called(*arguments: Any) -> Any:
            before = msgspec.msgpack.encode(arguments[0]) if name == "planned" else b""
            finite = name == "before_sample" and bool(arguments[0].isfinite().all())
            try:
                if name in _ON_DEVICE:
                    with no_readback():
                        answer = call(*arguments)
                else:
                    answer = call(*arguments)
            except ReadBack as error:
                self._breaches.append(f"{name} waits for the device: {error}")
                raise
            except Exception as error:
                self._breaches.append(f"{name} raised {type(error).__name__}: {error}")
                raise
            if name == "planned" and msgspec.msgpack.encode(arguments[0]) != before:
                self._breaches.append("planned changed the plan; it may look at it only")
            if breach := _wrong(name, arguments, answer, finite):
                self._breaches.append(breach)
            return answer

        return called


def _wrong(name: str, arguments: tuple[Any, ...], answer: Any, finite: bool) -> str:
    """Return what is wrong with an answer, or an empty text."""
    if name in _PAYLOADS and not isinstance(answer, bytes | None):
        return f"{name} returned {answer!r:.80}; return bytes, or None if there is nothing to send"
    if name in _TRUTHS and not isinstance(answer, bool):
        return f"{name} returned {answer!r:.80}; return True or False"
    if name == "may_start" and not isinstance(answer, int):
        return f"may_start returned {answer!r:.80}; return True, False or a MayStart"
    if name == "before_sample":
        if not isinstance(answer, torch.Tensor) or answer.shape != arguments[0].shape:
            return (
                f"before_sample returned {type(answer).__name__}; return logits of the shape "
                f"{tuple(arguments[0].shape)}"
            )
        if answer.isnan().any() and finite:
            return "before_sample made finite logits NaN"
    return ""
