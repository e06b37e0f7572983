"""What plugins provide to routes, with the promises of `core.api`."""

from builtin_plugins.routes.media import (
    MediaCounter,
    MediaLoader,
    MediaSource,
    media_counters,
    media_loaders,
)
from builtin_plugins.routes.responses.database import Connection, Database, DatabaseUnavailable
from builtin_plugins.routes.variants import Call, Variant, VariantSource, variant_sources

__all__ = [
    "Call",
    "Connection",
    "Database",
    "DatabaseUnavailable",
    "MediaCounter",
    "MediaLoader",
    "MediaSource",
    "Variant",
    "VariantSource",
    "media_counters",
    "media_loaders",
    "variant_sources",
]
