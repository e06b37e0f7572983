"""The ranks that hold one model, where models look for them."""

from core.contracts.parallel import ParallelGroup, Pipeline

__all__ = ["ParallelGroup", "Pipeline"]
