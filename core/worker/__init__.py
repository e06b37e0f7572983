"""The worker: executes step plans on one device."""

from core.worker.worker import Worker

__all__ = ["Worker"]
