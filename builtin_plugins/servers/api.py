"""The parent of a serving process, with the promises of `core.api`."""

from builtin_plugins.servers.parent import Parent, PreservedState

__all__ = ["Parent", "PreservedState"]
