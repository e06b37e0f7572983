"""Which model a request means, by the name in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import quote

from fastapi import HTTPException

from builtin_plugins.commands.route.proxy import Lost
from builtin_plugins.commands.serve.models.pool import Model

ANSWER_S: Final = 5.0
"""Timeout of a process that is queried for a name, in seconds."""


class ModelNames:
    """Finds models by served names, patterns and adapters."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = models
        self._exact = {name: model for model in models for name in model.settings.names}
        self._adapters = {
            name: model for model in models for name in model.settings.adapters if name
        }
        self._patterns = [(name, model) for name, model in self._exact.items() if "*" in name]

    def add_adapter(self, name: str, model: Model) -> None:
        """Add an adapter that a client has loaded."""
        self._adapters[name] = model

    def remove_adapter(self, name: str) -> None:
        """Remove an adapter that a client has unloaded."""
        self._adapters.pop(name, None)

    def known(self, name: str) -> Model | None:
        """Return the model of a name that this server itself knows."""
        found = self._exact.get(name) or self._adapters.get(name)
        if found is not None:
            return found
        return next((model for each, model in self._patterns if fnmatchcase(name, each)), None)

    async def find(self, name: str | None) -> Model:
        """Return the model of a name; models with adapters are queried for an unknown one.

        Raises a 404 for a name that is not served, and a 400 without a name.
        """
        if name is None:
            if len(self._models) == 1:
                return self._models[0]
            message = f"model: got none; expected one of {self._all()}. Name one."
            raise HTTPException(400, {"message": message, "param": "model", "code": "missing"})
        found = self.known(name) or await self._query(name)
        if found is None:
            message = f"the model {name[:200]!r} does not exist here; served: {self._all()}."
            raise HTTPException(
                404, {"message": message, "param": "model", "code": "model_not_found"}
            )
        return found

    async def _query(self, name: str) -> Model | None:
        """Return the loaded model that has an adapter of this name."""
        able = [m for m in self._models if m.settings.has_adapters and m.state == "loaded"]
        answers = await asyncio.gather(*(_has(model, name) for model in able))
        return next((model for model, has in zip(able, answers, strict=True) if has), None)

    def _all(self) -> str:
        return ", ".join([*self._exact, *self._adapters])


async def _has(model: Model, name: str) -> bool:
    """Return whether the process of a model serves a name."""
    target = b"/v1/models/" + quote(name, safe="").encode()
    try:
        async with model.process.get(target, ANSWER_S) as answer:
            return answer.status == 200
    except Lost:
        return False
