"""The worker: executes plans on one device."""

from core.worker.worker import Worker

__all__ = ["Worker"]
