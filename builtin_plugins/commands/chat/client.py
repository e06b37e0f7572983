"""A client of OpenAI's HTTP API, as far as a conversation needs one. Knows HTTP; knows no terminal."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Final
from urllib.parse import urlsplit

from core.api import ConfigError, EngineError

CONNECT_TIMEOUT_S: Final = 10
"""To reach the server; answers may take as long as they take."""
END: Final = "[DONE]"
MOST_BYTES: Final = 1 << 24
"""Of one answer that is read whole, and of one line of a stream."""


class Client:
    """Calls one server.

    Every method raises `EngineError` that says what the server, or its absence, says.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"--url {url!r} is no address of a server; give one like http://localhost:8000/v1."
            )
        self._https = parts.scheme == "https"
        self._host = parts.hostname
        try:
            self._port = parts.port
        except ValueError as error:
            raise ConfigError(f"--url {url!r}: {error}.") from error
        self._path = parts.path or "/v1"
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {api_key}"} if api_key else {}
        )

    def models(self) -> list[str]:
        """Return the names the server answers to, the first one first."""
        with closing(self._connect()) as connection:
            body = self._answer(connection, "GET", "/models").read(MOST_BYTES)
        try:
            return [model["id"] for model in json.loads(body)["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(
                f"{self.url}/models does not list models; is this the address of an API?"
            ) from error

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of a streamed answer. Closing the iterator makes the server stop."""
        with closing(self._connect()) as connection:
            response = self._answer(
                connection, "POST", path, json.dumps({**body, "stream": True}).encode()
            )
            try:
                yield from self._events(response)
            except (OSError, http.client.HTTPException) as error:
                raise EngineError(
                    f"the connection to {self.url} broke off: {error or type(error).__name__}."
                ) from error

    def _events(self, response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        while line := response.readline(MOST_BYTES):
            field, _, data = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
            if field != "data":
                continue
            data = data.strip()
            if data == END:
                return
            try:
                event = json.loads(data)
            except ValueError as error:
                raise EngineError(f"{self.url} sends what is no JSON: {data:.100}") from error
            if "error" in event:
                raise EngineError(_said(event))
            yield event
        raise EngineError(f"{self.url} ended its answer before it was complete.")

    def _connect(self) -> http.client.HTTPConnection:
        make = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        connection = make(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
        try:
            connection.connect()
        except OSError as error:
            raise EngineError(
                f"no server answers at {self.url}: {error.strerror or error}. Start one with "
                "`engine serve MODEL`, or "
                "say where it is with --url."
            ) from error
        connection.sock.settimeout(None)
        return connection

    def _answer(
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
            text = response.read(MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"{self.url} does not answer as a server does: {error}.") from error
        try:
            said = _said(json.loads(text))
        except ValueError:
            said = response.reason
        hint = (
            " Give its key with --api-key or ENGINE_API_KEY."
            if response.status == http.HTTPStatus.UNAUTHORIZED
            else ""
        )
        raise EngineError(f"the server refuses ({response.status}): {said}{hint}")


def _said(answer: Any) -> str:
    """Return the message of an error in OpenAI's format."""
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or answer)
