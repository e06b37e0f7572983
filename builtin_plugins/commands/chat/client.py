"""HTTP client for OpenAI-compatible chat and completion endpoints."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Final
from urllib.parse import urlsplit

from core.api import ConfigError, EngineError

CONNECT_TIMEOUT_S: Final = 10
"""Timeout of the connection in seconds; responses have no timeout."""
END: Final = "[DONE]"
MAX_BYTES: Final = 1 << 24
"""Maximum bytes of a complete response, and of one line of a stream."""


class Client:
    """HTTP client of one server.

    Every method raises `EngineError` with the server's message, or the connection error.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"--url: got {url!r}; expected an address such as http://localhost:8000/v1."
            )
        self._https = parts.scheme == "https"
        self._host = parts.hostname
        try:
            self._port = parts.port
        except ValueError as error:
            raise ConfigError(f"--url: got {url!r}; {error}.") from error
        self._path = parts.path or "/v1"
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {api_key}"} if api_key else {}
        )

    def models(self) -> list[str]:
        """Return the served model names, the default first."""
        with closing(self._connect()) as connection:
            body = self._request(connection, "GET", "/models").read(MAX_BYTES)
        try:
            return [model["id"] for model in json.loads(body)["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(
                f"{self.url}/models lists no models. Check the address of the API."
            ) from error

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of a streamed response. Closing the iterator cancels the request."""
        with closing(self._connect()) as connection:
            response = self._request(
                connection, "POST", path, json.dumps({**body, "stream": True}).encode()
            )
            try:
                yield from self._events(response)
            except (OSError, http.client.HTTPException) as error:
                raise EngineError(
                    f"the connection to {self.url} was lost: {error or type(error).__name__}."
                ) from error

    def _events(self, response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        while line := response.readline(MAX_BYTES):
            field, _, data = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
            if field != "data":
                continue
            data = data.strip()
            if data == END:
                return
            try:
                event = json.loads(data)
            except ValueError as error:
                raise EngineError(f"{self.url} sent invalid JSON: {data:.100}") from error
            if "error" in event:
                raise EngineError(_error_message(event))
            yield event
        raise EngineError(f"{self.url} ended the response early.")

    def _connect(self) -> http.client.HTTPConnection:
        make = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        connection = make(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
        try:
            connection.connect()
        except OSError as error:
            raise EngineError(
                f"no server answers at {self.url}: {error.strerror or error}. Start one with "
                "`engine serve MODEL`, or set --url."
            ) from error
        connection.sock.settimeout(None)
        return connection

    def _request(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None = None,
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, self._path + path, body, self._headers)
            response = connection.getresponse()
            if response.status == http.HTTPStatus.OK:
                return response
            text = response.read(MAX_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"{self.url} gave an invalid response: {error}.") from error
        try:
            reason = _error_message(json.loads(text))
        except ValueError:
            reason = response.reason
        hint = (
            " Set --api-key or ENGINE_API_KEY."
            if response.status == http.HTTPStatus.UNAUTHORIZED
            else ""
        )
        raise EngineError(f"the server rejected the request ({response.status}): {reason}{hint}")


def _error_message(answer: Any) -> str:
    """Return the message of an OpenAI error response."""
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or answer)
