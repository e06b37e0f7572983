"""Which models a server has: names, settings and limits, from the command line and a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from builtin_plugins.commands.serve.rank_servers import MULTI_PORT
from core.api import ConfigError, EngineConfig
from core.api.config import OPTIONS, Field, config_from_kwargs

SWITCHES: Final = ("models_file", "max_loaded_models", "model_keep_alive", "max_model_queue")
"""Options of a server with several models."""
OF_THE_PORT: Final = frozenset(
    (
        *("host", "port", "uds", "root_path", "allowed_origins", "allowed_methods"),
        *("allowed_headers", "allow_credentials", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs"),
        *("ssl_cert_reqs", "ssl_ciphers", "enable_ssl_refresh", "max_connections"),
        *("enable_request_id_headers", "disable_fastapi_docs", "middleware"),
    )
)
"""Options of the server's port, which the processes of models do not get."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One model, and how it is served."""

    names: tuple[str, ...]
    """Names in requests; answers carry the first one."""
    model: str
    """Folder or hub id."""
    values: Mapping[str, Any]
    """Settings that differ from the defaults, by flat name."""
    keep_alive_s: float | None
    """Idle time after which it is unloaded, in seconds; None: never."""
    adapters: tuple[str, ...] = ()
    """Names of the adapters that it loads at its start."""
    has_adapters: bool = False
    """Whether it may serve further adapters."""
    location: str = "command line"

    @property
    def name(self) -> str:
        """The name in answers."""
        return self.names[0]


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The models of a server and its limits."""

    models: tuple[ModelSettings, ...]
    max_loaded: int
    """Largest number of models in memory."""
    max_queue: int
    """Largest number of requests that wait for models to be loaded."""


def read_models(context: Any) -> PoolSettings | None:
    """Return the models of `engine serve`; None for a server with one model.

    Raises `ConfigError` for duplicate names, and for settings that cannot work.
    """
    config: EngineConfig = context.config
    origin_of = context.provenance.origin_of
    further: Sequence[str] = context.args.more_models
    if not further and all(origin_of(name) == "default" for name in SWITCHES):
        return None
    if config.service.disable_frontend_multiprocessing:
        raise ConfigError(
            "--disable-frontend-multiprocessing: each of several models needs a process of its "
            "own. Remove the flag."
        )
    if config.options.get(MULTI_PORT):
        flag = context.table.by_name[MULTI_PORT].flag
        raise ConfigError(f"{flag}: got true; expected false with several models. Remove it.")
    reader = _Reader(context)
    path = config.options.get("models_file")
    names = config.model.served_model_name
    if names and (further or path):
        raise ConfigError(
            f"--served-model-name: got {', '.join(names)}; expected none with several models. Set "
            "served_model_name of each in a --models-file."
        )
    models = []
    if origin_of("model") != "default":
        models = [reader.of_argument(config.model.model, names)]
    models += [reader.of_argument(model) for model in further]
    models += reader.of_file(path) if path else []
    if not models:
        raise ConfigError("MODEL: got none; expected one or more. Name them, or a --models-file.")
    _check_names(models)
    return PoolSettings(
        tuple(models),
        config.options.get("max_loaded_models") or len(models),
        config.options.get("max_model_queue") or 0,
    )


class _Reader:
    """Joins the settings of all models with those of one."""

    def __init__(self, context: Any) -> None:
        config: EngineConfig = context.config
        self._table = context.table
        self._registry = context.registry
        server = self._registry.choose("servers").plugin.name
        self._own_fields = {
            name: found
            for name, found in self._table.by_name.items()
            if (found.group != server and name not in SWITCHES) or name == "model_keep_alive"
        }
        self._common = {
            name: _value(config, self._table.by_name[name])
            for name in context.provenance.origins
            if name in self._table.by_name and name not in {*SWITCHES, *OF_THE_PORT, "model"}
        }
        if "plugins" in self._common:
            self._common["plugins"] = self._without_named(config)
        self._keep_alive_s = config.options.get("model_keep_alive")

    def of_argument(self, model: str, names: Sequence[str] | None = None) -> ModelSettings:
        """Return a model of the command line, with its path or id as the default name."""
        return self._settings(names or [model.rstrip("/")], {"model": model}, "command line")

    def of_file(self, path: str) -> list[ModelSettings]:
        """Return the models of a file."""
        from builtin_plugins.commands.serve.models.models_file import (  # lazy: imports YAML
            ModelsFile,
        )

        found = ModelsFile(path, self._table, self._own_fields).read()
        models = []
        for each in found:
            names = [each.name, *(each.settings.get("served_model_name") or ())]
            models.append(self._settings(list(dict.fromkeys(names)), each.settings, each.location))
        return models

    def _settings(
        self, names: Sequence[str], own: Mapping[str, Any], location: str
    ) -> ModelSettings:
        values = {**self._common, **own, "served_model_name": list(names)}
        if values.get("journal") and "journal" not in own:
            values["journal"] = f"{values['journal']}.{quote(names[0], safe='')}"
        keep_alive_s = values.pop("model_keep_alive", self._keep_alive_s)
        try:
            config = config_from_kwargs(values, self._registry.options())
        except ConfigError as error:
            raise ConfigError(f"{location}: {names[0]}: {error}") from error
        modules = config.options.get("lora_modules") or ()
        return ModelSettings(
            tuple(names),
            str(own["model"]),
            values,
            keep_alive_s,
            tuple(map(_adapter_name, modules)),
            bool(modules or config.options.get("enable_lora")),
            location,
        )

    def _without_named(self, config: EngineConfig) -> list[str]:
        """Return `--plugins` without those that values of options name; they are found again."""
        named = {
            f"+{config.options.get(option.name)}"
            for _, option in self._registry.options()
            if option.names_plugin
        }
        return [each for each in config.plugins.plugins if each not in named]


def _value(config: EngineConfig, found: Field) -> Any:
    if found.section == OPTIONS:
        return config.options[found.name]
    return getattr(getattr(config, found.section), found.name)


def _adapter_name(module: str) -> str:
    """Return the name of an adapter in `NAME=PATH` or JSON."""
    if not module.lstrip().startswith("{"):
        return module.partition("=")[0].strip()
    try:
        return str(json.loads(module).get("name"))
    except (ValueError, AttributeError):
        return ""  # refused when the model is loaded


def _check_names(models: Sequence[ModelSettings]) -> None:
    """Raise `ConfigError` for a name of two models or their adapters."""
    owners: dict[str, ModelSettings] = {}
    for model in models:
        for name in filter(None, (*model.names, *model.adapters)):
            other = owners.setdefault(name, model)
            if other is not model:
                raise ConfigError(
                    f"{model.location}: {name}: names two models, also {other.model!r} "
                    f"({other.location}). Give each a name of its own in a --models-file."
                )


def child_file(settings: ModelSettings, socket: str) -> str:
    """Return the configuration file of a model's process, as YAML."""
    import yaml  # lazy: the parent of one model needs none

    values = {name: "None" if value is None else value for name, value in settings.values.items()}
    return yaml.safe_dump(_plain({**values, "uds": socket}))


def _plain(value: Any) -> Any:
    """Return a value that YAML can hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
