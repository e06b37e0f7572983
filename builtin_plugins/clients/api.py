"""What clients share with routers of engines; as stable as `core.api`."""

from builtin_plugins.clients.balancing import CachedPrefixes

__all__ = ["CachedPrefixes"]
