"""The exact replay of a journal, for tests of policies and extensions."""

from core.scheduler.replay import ReplayReport, replay

__all__ = ["ReplayReport", "replay"]
