"""Entry point of the distribution: the database of `--responses-store postgresql://...`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from core.api import EngineConfig, Option, Range, hookimpl

if TYPE_CHECKING:
    from builtin_plugins.routes.api import Database


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "responses_store_connections",
            Annotated[int, Range(1, 64)],
            4,
            "Largest number of connections of this server to the PostgreSQL database of "
            "--responses-store.",
        )
    ]


@hookimpl(optionalhook=True)
def engine_response_database(url: str, config: EngineConfig) -> Database | None:
    """Return the database of a `postgresql://` URL."""
    if not url.startswith(("postgresql://", "postgres://")):
        return None
    from engine_postgres.database import PostgresDatabase  # lazy: psycopg loads libpq

    return PostgresDatabase(url, config.options.get("responses_store_connections", 4))
