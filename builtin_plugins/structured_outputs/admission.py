"""At the edge: a constraint that no backend can hold outputs to is refused; else the backend is chosen, once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from builtin_plugins.structured_outputs.settings import StructuredOutputsConfig
from core.api import ConfigError, Constraint, EngineConfig, InvalidRequest, SamplingParams

CHECK_S: Final = 10.0
"""Longest time for reading a constraint; it takes milliseconds unless somebody means harm."""
NUM_CHECKERS: Final = 2


class Admission:
    """Checks constraints in threads of its own, so that one that takes long holds up nobody else's request."""

    params: tuple[str, ...] = ("structured_outputs",)

    def __init__(self, config: EngineConfig, registry: Any) -> None:
        self._settings = StructuredOutputsConfig.of(config)
        self._registry = registry
        if self._settings.wanted != "auto":
            registry.load(registry.choose("grammar_backends", self._settings.wanted))
        self._threads = ThreadPoolExecutor(NUM_CHECKERS, thread_name_prefix="constraint-check")

    def wants(self, sampling: SamplingParams) -> bool:
        """Say whether the request is constrained."""
        return sampling.structured_outputs is not None

    def admit(self, sampling: SamplingParams, end_ids: Sequence[int]) -> SamplingParams:
        """Return the parameters with the backend that will serve them."""
        params = sampling.structured_outputs
        assert params is not None
        if not end_ids:
            raise InvalidRequest("structured_outputs", "the model has no end token, so no output could be complete.")
        settings = self._settings
        constraint = msgspec.structs.replace(
            params,
            disable_any_whitespace=params.disable_any_whitespace or settings.disable_any_whitespace,
            disable_additional_properties=params.disable_additional_properties
            or settings.disable_additional_properties,
        )
        future = self._threads.submit(self._choose, constraint.constraint(), constraint.disable_fallback)
        try:
            backend = future.result(CHECK_S)
        except TimeoutError as error:
            future.cancel()
            raise InvalidRequest(
                f"structured_outputs.{params.kind}", f"takes longer than {CHECK_S:g} s to read; make it simpler."
            ) from error
        return sampling.clone(structured_outputs=msgspec.structs.replace(constraint, backend=backend))

    def _choose(self, constraint: Constraint, disable_fallback: bool) -> str:
        """Return the first backend that serves a constraint. Raises what the first one says when none does."""
        refusal: InvalidRequest | None = None
        for registered in self._candidates():
            backend = self._registry.load(registered, probe=True)
            try:
                backend.check(constraint)
            except InvalidRequest as error:
                refusal = refusal or error
                if disable_fallback or self._settings.disable_fallback:
                    break
            else:
                return str(registered.entry.name)
        raise refusal or InvalidRequest("structured_outputs", "no grammar backend is loaded.")

    def _candidates(self) -> list[Any]:
        """Return the backends to ask, best first."""
        wanted = self._settings.wanted
        if wanted != "auto":
            return [self._registry.choose("grammar_backends", wanted)]
        fitting = [c.registered for c in self._registry.rank("grammar_backends") if not c.reason]
        if not fitting:
            try:
                self._registry.choose("grammar_backends")
            except ConfigError as error:
                raise InvalidRequest("structured_outputs", f"cannot be served here: {error}") from error
        return fitting
