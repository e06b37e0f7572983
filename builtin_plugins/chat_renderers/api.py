"""Public names of chat renderers, for other plugins."""

from builtin_plugins.chat_renderers.surrogates import json_without_lone_surrogates

__all__ = ["json_without_lone_surrogates"]
