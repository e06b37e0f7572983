"""Adapters of one front: made once, and shown to whoever lists models or chooses one by name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from builtin_plugins.features.lora.calls import Methods, loaded, unloaded
from builtin_plugins.features.lora.edge import FIELD, Adapters, Known
from builtin_plugins.features.lora.settings import Settings
from builtin_plugins.features.lora.stored import BadAdapter
from core.api import ConfigError, EngineConfig, EngineError, InvalidRequest
from core.contracts.variants import Call, Variant, methods_of, variants_of
from core.familiar.adapters import LoRARequest


def adapters_of(config: EngineConfig, registry: Any) -> Adapters:
    """Return the adapters of this process, those of `--lora-modules` among them.

    Raises `ConfigError` for a bad one.
    """
    made: Adapters = registry.shared("lora adapters", lambda: _made(config, registry))
    return made


def _made(config: EngineConfig, registry: Any) -> Adapters:
    settings = Settings.of(config)
    assert settings is not None, "it is on"

    def locate(path: str) -> str:
        answers = (answer for _, answer in registry.ask("engine_find_adapter", path=path))
        return next((answer for answer in answers if answer is not None), path)

    adapters = Adapters(settings, locate)
    for module in settings.modules:
        if module.name in served_names(config):
            raise ConfigError(
                f"--lora-modules {module.name}: that is the name of the model; give the adapter "
                "another."
            )
        try:
            known = adapters.described(module.name, module.path, module.base_model_name)
            adapters.known[known.name] = adapters.read(known)
        except BadAdapter as error:
            raise ConfigError(f"--lora-modules {module.name}: {error}") from error
    variants_of(registry).append(Served(config, registry, adapters))
    methods_of(registry).update(Methods(adapters).by_name())
    return adapters


class Served:
    """Adapters as variants of the model: listed with it, chosen by name, and looked for elsewhere."""

    def __init__(self, config: EngineConfig, registry: Any, adapters: Adapters) -> None:
        self._config = config
        self._registry = registry
        self._adapters = adapters
        self._resolving: dict[str, asyncio.Task[Known | None]] = {}

    def variants(self) -> Sequence[Variant]:
        """Return those that models are listed with."""
        return [_variant(known) for known in self._adapters.listed()]

    async def find(self, name: str) -> Variant | None:
        """Return the adapter of this name; resolvers are asked for one that nobody knows.

        Raises `InvalidRequest`.
        """
        known = self._adapters.known.get(name)
        if known is None:
            task = self._resolving.get(name)
            if task is None:  # who asks at the same time waits for the same answer
                task = self._resolving[name] = asyncio.create_task(self._resolved(name))
                task.add_done_callback(lambda _: self._resolving.pop(name, None))
            known = await asyncio.shield(task)
        return None if known is None else _variant(known)

    async def load(
        self, call: Call, name: str, path: str, parent: str | None, *, again: bool
    ) -> None:
        """Serve an adapter from now on.

        Raises `InvalidRequest` for a bad one, and what was served stays.
        """
        adapters = self._adapters
        before = adapters.known.get(name)
        if before is not None and not again:
            raise InvalidRequest("lora_name", f"The lora adapter {name!r} has already been loaded.")
        if name in served_names(self._config):
            raise InvalidRequest(
                "lora_name", f"{name!r:.100} is the name of the model; give the adapter another."
            )
        try:
            adapters.check_root(path)
            known = await asyncio.to_thread(adapters.read, adapters.described(name, path, parent))
        except BadAdapter as error:
            raise InvalidRequest("lora_path", f"adapter {name!r:.100}: {error}") from error
        assert known.wanted is not None, "it was read"
        await loaded(call, known.wanted)
        adapters.known[name] = known
        if (
            before is not None
            and before.wanted is not None
            and before.wanted.digest != known.wanted.digest
        ):
            await unloaded(call, before.wanted)

    async def unload(self, call: Call, name: str) -> bool:
        """Serve an adapter no more; requests that have it keep it. False for an unknown name."""
        known = self._adapters.remove(name)
        if known is not None and known.wanted is not None:
            await unloaded(call, known.wanted)
        return known is not None

    async def _resolved(self, name: str) -> Known | None:
        base = self._config.model.model
        for ref, resolvers in self._registry.ask("engine_lora_resolvers", config=self._config):
            for resolver in resolvers or ():
                try:
                    found = await resolver.resolve_lora(base, name)
                    if found is None:
                        continue
                    return await self._added(name, found)
                except BadAdapter as error:
                    raise InvalidRequest("model", f"adapter {name!r:.100}: {error}") from error
                except EngineError:
                    raise
                except Exception as error:
                    raise InvalidRequest(
                        "model", f"resolver {ref.name} failed for {name!r:.100}: {error}"
                    ) from error
        return None

    async def _added(self, name: str, found: Any) -> Known:
        adapters = self._adapters
        known = adapters.described(name, found.lora_path, getattr(found, "base_model_name", None))
        adapters.known[name] = await asyncio.to_thread(adapters.read, known)
        return adapters.known[name]


def served_names(config: EngineConfig) -> Sequence[str]:
    """Return the names of the model itself."""
    return config.model.served_model_name or [config.model.model]


def _variant(known: Known) -> Variant:
    request = known.request
    asked = LoRARequest(
        request.lora_name, request.lora_int_id, request.lora_path, request.base_model_name
    )
    return Variant(known.name, str(known.folder), known.base_model, {FIELD: asked})
