"""Resolves adapters from one folder, `--lora-resolver-cache-dir DIR`: DIR/NAME."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from builtin_plugins.weight_loaders.api import open_regular
from core.api import ConfigError, EngineConfig, InvalidRequest, LoRARequest, Option, hookimpl

OPTION: Final = "lora_resolver_cache_dir"
NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
"""A single path component that never leads upwards."""


@hookimpl
def engine_options() -> list[Option]:
    text = "Folder to resolve adapters from by name: DIR/NAME."
    return [Option(OPTION, str | None, None, text, needs=("enable_lora", "lora_modules"))]


@hookimpl(optionalhook=True)
def engine_lora_resolvers(config: EngineConfig) -> list[Any]:
    folder = config.options.get(OPTION)
    return [] if folder is None else [FilesystemResolver(Path(folder), config)]


class FilesystemResolver:
    """Resolves adapters of the served model."""

    name = "filesystem"

    def __init__(self, folder: Path, config: EngineConfig) -> None:
        """Raises `ConfigError` if the path is not a folder."""
        self._folder = folder.expanduser()
        if not self._folder.is_dir():
            raise ConfigError(
                f"--lora-resolver-cache-dir {folder} must be set to a valid directory."
            )
        self._bases = {config.model.model, *(config.model.served_model_name or ())}

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """Return the adapter in the folder of this name; None: none for this model."""
        import asyncio  # lazy: it takes as long as all else that a plugin module imports

        if not NAME.fullmatch(lora_name):
            return None
        return await asyncio.to_thread(self._find, base_model_name, lora_name)

    def _find(self, base: str, name: str) -> LoRARequest | None:
        # Lazy: it imports numpy, and every start imports this module.
        from builtin_plugins.features.lora.adapter_file import CONFIG, MAX_CONFIG_BYTES, WEIGHTS

        root = self._folder.resolve()
        try:
            found = (root / name).resolve()
            files = [found / name for name in (CONFIG, WEIGHTS)]
            targets = [file.resolve() for file in (found, *files)]
        except (OSError, RuntimeError):
            return None  # a loop of links
        if not all(target.is_relative_to(root) for target in targets):
            return None  # a link may point anywhere
        if not files[0].is_file():
            return None
        try:
            with open_regular(files[0]) as file:
                config = json.loads(file.read(MAX_CONFIG_BYTES))
            kind = config.get("peft_type")
            trained_on = config.get("base_model_name_or_path")
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise InvalidRequest(
                "model", f"adapter {name!r}: Invalid adapter configuration: {error}."
            ) from error
        if kind != "LORA":
            raise InvalidRequest(
                "model",
                f"adapter {name!r}: Invalid adapter configuration: peft_type is {kind!r:.50}.",
            )
        if trained_on not in {base, *self._bases}:
            return None
        return LoRARequest(name, 1, str(found), base_model_name=base)
