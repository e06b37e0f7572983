"""Settings that a model comes with: its names in requests and the parsers of its outputs."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.api import CommandContext, EngineConfig

log = logging.getLogger(__name__)


def with_model_defaults(context: CommandContext) -> EngineConfig:
    """Return the configuration with what plugins set for its model and the user did not."""
    config = context.config
    options = dict(config.options)
    used = []
    answers = context.registry.call_hook("engine_serve_defaults", model=config.model.model)
    for name, value in (item for _, defaults in answers for item in (defaults or {}).items()):
        found = context.table.by_name.get(name)
        if found is None or name in context.provenance.origins:
            continue
        used.append(_flag(found.flag, value))
        if found.section == "options":
            options[name] = value
        else:
            section = replace(getattr(config, found.section), **{name: value})
            config = replace(config, **{found.section: section})
    if used:
        log.info("%s is served with %s", config.model.model, " ".join(used))
    return replace(config, options=options)


def _flag(flag: str, value: Any) -> str:
    """Return a setting as it is typed."""
    if value is True:
        return flag
    return " ".join([flag, *(value if isinstance(value, list) else [str(value)])])
