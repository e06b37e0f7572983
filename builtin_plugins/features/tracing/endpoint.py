"""`--otlp-traces-endpoint` before anything is loaded: is it an address, and is there what speaks to
it?
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from core.api import ConfigError

SCHEMES: Final = ("http", "https", "grpc", "grpcs")
GRPC_PORT: Final = 4317
"""OpenTelemetry's own for it; an endpoint with this port and no path is meant so."""


def speaks_grpc(endpoint: str) -> bool:
    """Say whether the collector is spoken to over gRPC."""
    address = urlsplit(endpoint)
    return address.scheme in ("grpc", "grpcs") or (
        address.port == GRPC_PORT and address.path in ("", "/")
    )


def check(endpoint: str) -> None:
    """Raise `ConfigError` for an endpoint that cannot be spoken to."""
    try:
        address = urlsplit(endpoint)
        usable = address.scheme in SCHEMES and bool(address.hostname) and address.port != 0
    except ValueError:  # a port that is no number
        usable = False
    if not usable:
        raise ConfigError(
            f"--otlp-traces-endpoint {endpoint!r} is no address of a collector; "
            "give http://HOST:4318/v1/traces, or grpc://HOST:4317."
        )
    transport = "grpc" if speaks_grpc(endpoint) else "http"
    for module in ("opentelemetry.sdk", f"opentelemetry.exporter.otlp.proto.{transport}"):
        if not _is_there(module):
            raise ConfigError(
                f"--otlp-traces-endpoint needs the module {module}: "
                f"pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-{transport}."
            )


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even what it is in
        return False
