"""Resolves adapters from Hugging Face hub repositories that `--lora-hub-repos` allows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from core.api import EngineConfig, InvalidRequest, LoRARequest, ModelError, Option, hookimpl

log = logging.getLogger(__name__)
OPTION: Final = "lora_hub_repos"
FILES: Final = ("adapter_config.json", "adapter_model.safetensors")


@hookimpl
def engine_options() -> list[Option]:
    text = "Hub repositories with adapters that requests may name: OWNER/NAME, or OWNER/*."
    return [Option(OPTION, list[str] | None, None, text, needs=("enable_lora", "lora_modules"))]


@hookimpl(optionalhook=True)
def engine_lora_resolvers(config: EngineConfig) -> list[Any]:
    allowed = config.options.get(OPTION)
    return [HubResolver(allowed, config)] if allowed else []


class HubResolver:
    """Fetches the two files of a repository, after a check of their sizes."""

    name = "hub"

    def __init__(self, allowed: Sequence[str], config: EngineConfig) -> None:
        self._allowed = allowed
        self._token = config.model.hf_token
        self._max_bytes = int(config.options.get("max_lora_bytes", 1 << 30))

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """Return the adapter of a repository; None for a name that is not allowed."""
        import asyncio  # lazy: it takes as long as all else that a plugin module imports

        if lora_name.count("/") != 1 or not any(
            fnmatchcase(lora_name, each) for each in self._allowed
        ):
            return None
        folder = await asyncio.to_thread(self._fetch, lora_name)
        return LoRARequest(lora_name, 1, folder, base_model_name=base_model_name)

    def _fetch(self, name: str) -> str:
        from huggingface_hub import HfApi, snapshot_download  # lazy: slow to import

        # lazy: as above
        from builtin_plugins.model_sources.api import check_cache

        try:
            found = HfApi(token=self._token).model_info(name, files_metadata=True)
            sizes = {
                file.rfilename: file.size or 0
                for file in found.siblings or ()
                if file.rfilename in FILES
            }
            if len(sizes) < len(FILES):
                missing = ", ".join(sorted(set(FILES) - set(sizes)))
                raise InvalidRequest(
                    "model", f"LoRA adapter not found: {name} has no {missing} on the hub."
                )
            if max(sizes.values()) > self._max_bytes:
                raise InvalidRequest(
                    "model",
                    f"adapter {name}: {max(sizes.values())} bytes; --max-lora-bytes allows "
                    f"{self._max_bytes}.",
                )
            check_cache(name, found.sha, None)
            return snapshot_download(
                name, revision=found.sha, allow_patterns=list(FILES), token=self._token
            )
        except InvalidRequest:
            raise
        except (OSError, ModelError) as error:  # its message names files of this machine
            log.warning("adapter %s cannot be fetched from the hub: %s", name, error)
            raise InvalidRequest(
                "model", f"adapter {name} cannot be fetched from the hub; see the server's log."
            ) from error
        except Exception as error:
            raise InvalidRequest(
                "model", f"adapter {name} cannot be fetched from the hub: {error}"
            ) from error
