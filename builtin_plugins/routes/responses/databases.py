"""Opens the database of `--responses-store`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builtin_plugins.routes.responses.database import Database
from builtin_plugins.routes.responses.sqlite_database import SqliteDatabase
from core.api import ConfigError

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry


def open_database(config: EngineConfig, registry: Registry | None) -> Database:
    """Return the database of a file, of a URL that a plugin knows, or in memory.

    Raises `ConfigError`.
    """
    place = config.options.get("responses_store") or ""
    scheme, separator, _ = place.partition("://")
    if not separator:
        several = (config.options.get("api_server_count") or 1) > 1
        return SqliteDatabase(place, is_shared=several)
    hook = "engine_response_database"
    answers = [] if registry is None else registry.call_hook(hook, url=place, config=config)
    for _, database in answers:
        if database is not None:
            found: Database = database
            return found
    raise ConfigError(
        f"--responses-store: got a URL with the scheme {scheme}, which no plugin opens; expected "
        "a file, or postgresql:// with the plugin engine-postgres (`pip install "
        "plugins/engine-postgres` in a checkout)."
    )
