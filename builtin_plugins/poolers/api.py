"""The contract of poolers, with the promises of `core.api`."""

from builtin_plugins.poolers.contract import Pooler

__all__ = ["Pooler"]
