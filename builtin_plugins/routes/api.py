"""What plugins provide to routes, with the promises of `core.api`."""

from builtin_plugins.routes.calls import Call, require_all
from builtin_plugins.routes.common.media_parts import MediaMessages, load_media, read_media
from builtin_plugins.routes.common.websocket import accept_websocket, error_message, serve_messages
from builtin_plugins.routes.error_forms import ERROR_FORMS
from builtin_plugins.routes.media import (
    MediaCounter,
    MediaLoader,
    MediaSource,
    media_counters,
    media_loaders,
)
from builtin_plugins.routes.responses.database import Connection, Database, DatabaseUnavailable
from builtin_plugins.routes.responses.tool_server import (
    ServedTool,
    ToolResult,
    ToolServer,
    ToolServerError,
)
from builtin_plugins.routes.variants import Variant, VariantSource, variant_sources

__all__ = [
    "ERROR_FORMS",
    "Call",
    "Connection",
    "Database",
    "DatabaseUnavailable",
    "MediaCounter",
    "MediaLoader",
    "MediaMessages",
    "MediaSource",
    "ServedTool",
    "ToolResult",
    "ToolServer",
    "ToolServerError",
    "Variant",
    "VariantSource",
    "accept_websocket",
    "error_message",
    "load_media",
    "media_counters",
    "media_loaders",
    "read_media",
    "require_all",
    "serve_messages",
    "variant_sources",
]
