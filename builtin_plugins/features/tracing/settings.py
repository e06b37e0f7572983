"""Options of tracing: `--otlp-traces-endpoint` and `--collect-detailed-traces`.

Does not need OpenTelemetry.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final, Self
from urllib.parse import urlsplit

from core.api import ConfigError, EngineConfig

NAME: Final = "tracing"
CHOICES: Final = ("all", "model", "worker")
SCHEMES: Final = ("http", "https", "grpc", "grpcs")
GRPC_PORT: Final = 4317
"""OpenTelemetry's port for gRPC; an endpoint with this port and no path uses gRPC."""


@dataclass(frozen=True, slots=True)
class Detail:
    """Detailed times to measure; false if there are none."""

    model: bool = False
    worker: bool = False

    @classmethod
    def of(cls, config: EngineConfig) -> Self:
        """Read the option, with values in a list or joined by commas. Raises `ConfigError`."""
        given = config.options.get("collect_detailed_traces") or []
        names = {name.strip() for value in given for name in value.split(",")}
        if unknown := sorted(names - set(CHOICES)):
            raise ConfigError(
                f"--collect-detailed-traces: got {unknown[0]!r}; expected {', '.join(CHOICES)}."
            )
        is_all = "all" in names
        return cls(is_all or "model" in names, is_all or "worker" in names)

    def __bool__(self) -> bool:
        return self.model or self.worker


def speaks_grpc(endpoint: str) -> bool:
    """Return whether the endpoint uses gRPC."""
    address = urlsplit(endpoint)
    if address.scheme in ("grpc", "grpcs"):
        return True
    return address.port == GRPC_PORT and address.path in ("", "/")


def check(endpoint: str) -> None:
    """Raise `ConfigError` for an invalid endpoint, and for a missing library."""
    try:
        address = urlsplit(endpoint)
        is_valid = address.scheme in SCHEMES and bool(address.hostname) and address.port != 0
    except ValueError:  # a port that is not a number
        is_valid = False
    if not is_valid:
        raise ConfigError(
            f"--otlp-traces-endpoint {endpoint!r} is not the address of a collector; "
            "give http://HOST:4318/v1/traces, or grpc://HOST:4317."
        )
    transport = "grpc" if speaks_grpc(endpoint) else "http"
    for module in ("opentelemetry.sdk", f"opentelemetry.exporter.otlp.proto.{transport}"):
        if not _is_installed(module):
            raise ConfigError(
                f"--otlp-traces-endpoint needs the module {module}: "
                f"pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-{transport}."
            )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False
