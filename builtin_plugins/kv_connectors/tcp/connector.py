"""The connector's settings, and its half beside the scheduler: what other engines have for requests
that wait here.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq

from builtin_plugins.kv_connectors.bounded import BoundedDirectory
from builtin_plugins.kv_connectors.eviction import Name
from builtin_plugins.kv_connectors.settings import EXTRA, FLAG, read_extra
from builtin_plugins.kv_connectors.tcp.protocol import address_of
from builtin_plugins.kv_connectors.tcp.store import Source, TcpStore
from core.api import (
    BlockKey,
    ConfigError,
    EngineConfig,
    InvalidRequest,
    KVLayout,
    KVTransferConfig,
    StoreParts,
)

FIELD: Final = "kv_transfer_params"
LEAST_TOKEN: Final = 16
PORTS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Settings:
    """The connector's own."""

    token: str = ""
    """What all engines know that may have each other's blocks."""
    token_file: str = ""
    """Where it stands, instead."""
    peer_timeout_s: float = 5.0
    """Another engine that does not answer within is lost."""
    listen: bool = True
    """No: it fetches what others have, and keeps its own to itself."""
    eviction_policy: Name = "lru"


class Tcp:
    """Connector `tcp`."""

    kind: type[Settings] = Settings

    def __init__(self, config: EngineConfig, settings: KVTransferConfig) -> None:
        own = read_extra(self.kind, settings)
        parallel = config.parallel
        self.config = config
        self.own = own
        self.settings = settings
        self.token = _token(own)
        self._num_ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        self._serves = settings.kv_role != "kv_consumer"
        if not 0 < own.peer_timeout_s < float("inf"):
            raise ConfigError(
                f"{FLAG}.{EXTRA}.peer_timeout_s must be more than 0, not {own.peer_timeout_s}."
            )
        if not 0 < settings.kv_port <= PORTS - self._num_ranks:
            raise ConfigError(
                f"{FLAG}.kv_port {settings.kv_port} is no port; each rank takes one from it on."
            )
        if not 0 < settings.kv_buffer_size < float("inf"):
            raise ConfigError(
                f"{FLAG}.kv_buffer_size must be more than 0 bytes, not {settings.kv_buffer_size}."
            )
        if (
            not settings.kv_ip
            or not settings.kv_ip.isprintable()
            or any(mark in settings.kv_ip for mark in " /[]")
        ):
            raise ConfigError(
                f"{FLAG}.kv_ip {settings.kv_ip!r} is no address that other engines could reach."
            )

    @staticmethod
    def trial(folder: str) -> Mapping[str, Any]:
        """A token, and no port: several are tried at once."""
        return {"token": "t" * LEAST_TOKEN, "listen": False}

    def directory(self, layout: KVLayout, num_ranks: int) -> PeerDirectory:
        """Return what knows this engine's blocks, and what others have offered."""
        group_bytes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        most_bytes = int(self.settings.kv_buffer_size) // num_ranks if self._serves else 0
        own = BoundedDirectory(most_bytes, group_bytes, self.own.eviction_policy)
        where = Source(
            self.settings.engine_id or secrets.token_hex(8),
            self.settings.kv_ip,
            self.settings.kv_port,
        )
        return PeerDirectory(own, where, self.token)

    def store(self, parts: StoreParts) -> TcpStore:
        """Return a rank's half. Raises `ConfigError` where it cannot listen."""
        host = self.settings.kv_ip
        port = self.settings.kv_port + parts.rank
        address = address_of(host, port) if self._serves and self.own.listen else None
        try:
            return self.open(parts, address)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"{FLAG}.kv_ip {host} and kv_port {port}: cannot be listened on: {error.strerror}. "
                "Name another port, or an "
                "address of this machine."
            ) from error

    def open(self, parts: StoreParts, address: str | None) -> TcpStore:
        """Return a store that listens on an address. Raises `zmq.ZMQError` where it cannot."""
        return TcpStore(parts, self.token, address, self.own.peer_timeout_s)

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return this rank's share of what is kept for others."""
        return int(self.settings.kv_buffer_size) // self._num_ranks if self._serves else 0

    def check(self, params: Mapping[str, Any]) -> None:
        """Raise `InvalidRequest` unless an engine that knows the token has made this offer."""
        try:
            offer = msgspec.convert(params, Offer)
        except msgspec.ValidationError as error:
            raise InvalidRequest(FIELD, f"is no engine's offer: {error}.") from error
        if not hmac.compare_digest(
            offer.remote_seal.encode(), _seal(self.token, offer.source).encode()
        ):
            raise InvalidRequest(
                FIELD,
                "comes from no engine with this one's token; pass on what the prefill engine has "
                "answered.",
            )


class Offer(msgspec.Struct, frozen=True):
    """What is told of an engine that has blocks; names as in vLLM."""

    remote_engine_id: str
    remote_host: str
    remote_port: int
    remote_seal: str
    """By which engines know that one of them has said it: users pass it on, and could name any
    address.
    """
    remote_block_ids: list[int] | None = None
    """Full blocks of the first KV group; what counts is how many. None: all that the prompt has."""

    @property
    def source(self) -> Source:
        """Where it is."""
        return Source(self.remote_engine_id, self.remote_host, self.remote_port)


class PeerDirectory:
    """This engine's blocks, as host memory has them, and those that others have offered."""

    def __init__(self, own: BoundedDirectory, where: Source, token: bytes) -> None:
        self._own = own
        self._where = where
        self._token = token
        self._offered: dict[BlockKey, bytes] = {}
        """Where blocks are."""
        self._wanted: Counter[BlockKey] = Counter()
        """How many requests may want them."""
        self._requests: dict[str, list[BlockKey]] = {}

    @property
    def most_bytes(self) -> int:
        """Bytes that may be kept for others."""
        return self._own.most_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes that are."""
        return self._own.num_bytes

    def holds(self, key: BlockKey) -> bool:
        """Say whether it is here, or was offered."""
        return key in self._offered or self._own.holds(key)

    def admit(self, key: BlockKey, pinned: Any) -> list[BlockKey] | None:
        """Make room for one of this engine's."""
        return self._own.admit(key, pinned)

    def stored(self, key: BlockKey) -> None:
        """It is here."""
        self._own.stored(key)

    def used(self, key: BlockKey) -> None:
        """It stays longer."""
        self._own.used(key)

    def lost(self, key: BlockKey) -> None:
        """It is nowhere."""
        self._offered.pop(key, None)
        self._own.lost(key)

    # --- others

    def offer(self, blocks: Sequence[int]) -> Mapping[str, Any]:
        """Return what another engine is told."""
        where = self._where
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": where.engine_id,
            "remote_host": where.host,
            "remote_port": where.port,
            "remote_seal": _seal(self._token, where),
            "remote_block_ids": [*blocks],
        }

    def expect(self, request_id: str, keys: Iterable[BlockKey], params: Mapping[str, Any]) -> None:
        """Note where blocks are that are not here."""
        source = msgspec.msgpack.encode(msgspec.convert(params, Offer).source)
        expected = [key for key in keys if not self._own.holds(key)]
        self.forget(request_id)
        self._requests[request_id] = expected
        self._wanted.update(expected)
        self._offered.update(dict.fromkeys(expected, source))

    def forget(self, request_id: str) -> None:
        """Nobody wants them for this request."""
        for key in self._requests.pop(request_id, ()):
            self._wanted[key] -= 1
            if not self._wanted[key]:
                del self._wanted[key]
                self._offered.pop(key, None)

    def source(self, key: BlockKey) -> bytes:
        """Return where it is; empty: here."""
        return self._offered.get(key, b"")


def _token(own: Settings) -> bytes:
    if bool(own.token) == bool(own.token_file):
        raise ConfigError(
            f"{FLAG}.{EXTRA} needs token or token_file: what all engines know that may have each "
            "other's blocks."
        )
    try:
        token = own.token or Path(own.token_file).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{FLAG}.{EXTRA}.token_file {own.token_file!r} cannot be read: {error}."
        ) from error
    if len(token) < LEAST_TOKEN:
        raise ConfigError(
            f"{FLAG}.{EXTRA}: the token has {len(token)} characters; use {LEAST_TOKEN} or more."
        )
    return token.encode()


def _seal(token: bytes, where: Source) -> str:
    return hmac.digest(token, b"engine-kv/offer/" + msgspec.msgpack.encode(where), "sha256").hex()
