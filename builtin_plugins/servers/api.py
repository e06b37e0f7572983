"""Contracts of servers and routes, and the parent of a serving process; as stable as `core.api`."""

from builtin_plugins.servers.contract import RouteGroup, Server, ServerActivity
from builtin_plugins.servers.parent import Parent, PreservedState, ServerParent

__all__ = ["Parent", "PreservedState", "RouteGroup", "Server", "ServerActivity", "ServerParent"]
