"""LoRA adapters that clients load at run time: which model has them, also after it was reloaded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import msgspec

from builtin_plugins.commands.route.proxy import Lost
from builtin_plugins.commands.serve.models.forwarding import Call
from builtin_plugins.commands.serve.models.names import ModelNames
from builtin_plugins.commands.serve.models.pool import Model

log = logging.getLogger(__name__)

LOAD: Final = "/v1/load_lora_adapter"
UNLOAD: Final = "/v1/unload_lora_adapter"
ANSWER_S: Final = 60.0
"""Timeout for an adapter to be loaded again, in seconds."""


class _Fields(msgspec.Struct):
    lora_name: Any = None
    base_model_name: Any = None


class Adapters:
    """Remembers the adapters of each model, and loads them again with it."""

    def __init__(self, names: ModelNames) -> None:
        self._names = names
        self._calls: dict[str, tuple[Model, Call]] = {}
        """The model of each adapter, and the call that loaded it."""

    def model_of(self, path: str, body: bytes) -> str | None:
        """Return the model that a call about an adapter means without naming it."""
        if path not in (LOAD, UNLOAD):
            return None
        fields = _fields(body)
        if path == LOAD:
            base = fields.base_model_name
            return base if isinstance(base, str) and self._names.known(base) else None
        found = self._calls.get(str(fields.lora_name))
        return None if found is None else found[0].name

    def noted(self, path: str, call: Call, model: Model) -> Callable[[int], None]:
        """Return what notes the adapter of a call when its answer has come."""
        if path not in (LOAD, UNLOAD):
            return lambda status: None
        name = str(_fields(call.body).lora_name)
        own = replace(call)  # the body of a call is dropped once it is sent

        def note(status: int) -> None:
            if status == 200 and path == LOAD:
                self._calls[name] = (model, own)
                self._names.add_adapter(name, model)
            elif status in (200, 404) and path == UNLOAD:
                self._calls.pop(name, None)
                self._names.remove_adapter(name)

        return note

    async def reload(self, model: Model) -> None:
        """Load the adapters of a model again after it was loaded."""
        for name, (owner, call) in list(self._calls.items()):
            if owner is not model:
                continue
            try:
                async with call.to(model.process.address, ANSWER_S) as answer:
                    if answer.status != 200:
                        raise Lost((await answer.whole()).decode(errors="replace"))
            except Lost as error:
                log.error("the adapter %s of %s is not loaded again: %s", name, model.name, error)


def _fields(body: bytes) -> _Fields:
    try:
        return msgspec.json.decode(body, type=_Fields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Fields()
