"""Beam search, with the promises of `core.api`."""

from builtin_plugins.runners.generate.beam_search import BeamSearch

__all__ = ["BeamSearch"]
