"""Logits processors of one request at a time, with the promises of `core.api`."""

from builtin_plugins.logits_processors.per_request import RequestLogitsProcessor, RowFunction

__all__ = ["RequestLogitsProcessor", "RowFunction"]
