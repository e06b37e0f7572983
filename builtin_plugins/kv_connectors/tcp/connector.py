"""Connector `tcp`: its settings, and the directory of local and offered blocks."""

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

from builtin_plugins.kv_connectors.contract import BlockKey, KVTransferConfig, StoreParts
from builtin_plugins.kv_connectors.directory import BoundedDirectory, PolicyName
from builtin_plugins.kv_connectors.settings import EXTRA, FLAG, read_extra, require_positive
from builtin_plugins.kv_connectors.tcp.protocol import address_of
from builtin_plugins.kv_connectors.tcp.store import EngineAddress, TcpStore
from core.api import ConfigError, EngineConfig, InvalidRequest
from core.api.config import read_option_text
from core.model_spec.kv import KVLayout

FIELD: Final = "kv_transfer_params"
MIN_TOKEN_LENGTH: Final = 16
MAX_TOKEN_BYTES: Final = 4096
PORTS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Settings:
    """The connector's own settings."""

    token: str = ""
    """Secret of the engines that exchange blocks, of 16 characters or more. It is never sent."""
    token_file: str = ""
    """File with the token, instead of `token`."""
    peer_timeout_s: float = 5.0
    """Seconds without an answer after which a peer counts as lost."""
    listen: bool = True
    """Serve blocks to other engines; false: only fetch theirs."""
    eviction_policy: PolicyName = "lru"
    """Eviction of `kv_buffer_size`."""


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
        require_positive(f"{FLAG}.{EXTRA}.peer_timeout_s", own.peer_timeout_s)
        last_port = PORTS - self._num_ranks
        if not 0 < settings.kv_port <= last_port:
            raise ConfigError(
                f"{FLAG}.kv_port {settings.kv_port}: expected a port from 1 to {last_port}. Each "
                "rank takes one, counting up."
            )
        require_positive(f"{FLAG}.kv_buffer_size", settings.kv_buffer_size)
        if (
            not settings.kv_ip
            or not settings.kv_ip.isprintable()
            or any(mark in settings.kv_ip for mark in " /[]")
        ):
            raise ConfigError(
                f"{FLAG}.kv_ip {settings.kv_ip!r}: expected an address that other engines reach."
            )

    @staticmethod
    def example_settings(folder: str) -> Mapping[str, Any]:
        """Return settings that listen on no port, so that several can be tried at once."""
        return {"token": "t" * MIN_TOKEN_LENGTH, "listen": False}

    def directory(self, layout: KVLayout, num_ranks: int) -> PeerDirectory:
        """Return the directory of this engine's blocks and of those that others offer."""
        group_bytes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        capacity = int(self.settings.kv_buffer_size) // num_ranks if self._serves else 0
        own = BoundedDirectory(capacity, group_bytes, self.own.eviction_policy)
        address = EngineAddress(
            self.settings.engine_id or secrets.token_hex(8),
            self.settings.kv_ip,
            self.settings.kv_port,
        )
        return PeerDirectory(own, address, self.token)

    def store(self, parts: StoreParts) -> TcpStore:
        """Return a rank's store. Raises `ConfigError` if it cannot listen."""
        host = self.settings.kv_ip
        port = self.settings.kv_port + parts.rank
        address = address_of(host, port) if self._serves and self.own.listen else None
        try:
            return self.open(parts, address)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"{FLAG}.kv_ip {host} and kv_port {port}: cannot listen there: {error.strerror}. "
                "Choose another port, or an address of this machine."
            ) from error

    def open(self, parts: StoreParts, address: str | None) -> TcpStore:
        """Return a store that listens on an address. Raises `zmq.ZMQError` if it cannot."""
        return TcpStore(parts, self.token, address, self.own.peer_timeout_s)

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return this rank's share of the memory for other engines."""
        return int(self.settings.kv_buffer_size) // self._num_ranks if self._serves else 0

    def check(self, params: Mapping[str, Any]) -> None:
        """Raise `InvalidRequest` unless the offer is signed with this engine's token."""
        try:
            offer = msgspec.convert(params, Offer)
        except msgspec.ValidationError as error:
            raise InvalidRequest(FIELD, f"is not an engine's offer: {error}.") from error
        signature = _sign(self.token, offer.source)
        if not hmac.compare_digest(offer.remote_seal.encode(), signature.encode()):
            raise InvalidRequest(
                FIELD,
                "is not signed with this engine's token. Pass the prefill engine's answer on "
                "unchanged.",
            )


class Offer(msgspec.Struct, frozen=True):
    """Address of an engine with a request's blocks; fields named as in vLLM."""

    remote_engine_id: str
    remote_host: str
    remote_port: int
    remote_seal: str
    """Signature with the shared token. Clients pass the offer on, and must not forge addresses."""
    remote_block_ids: list[int] | None = None
    """Full blocks of the first KV group; only their number counts. None: all of the prompt."""

    @property
    def source(self) -> EngineAddress:
        """Address of the engine."""
        return EngineAddress(self.remote_engine_id, self.remote_host, self.remote_port)


class PeerDirectory:
    """The blocks in this engine's host memory, and those that other engines offer."""

    def __init__(self, own: BoundedDirectory, address: EngineAddress, token: bytes) -> None:
        self._own = own
        self._address = address
        self._token = token
        self._offered: dict[BlockKey, bytes] = {}
        """Encoded addresses of the engines that offer a block."""
        self._num_requests: Counter[BlockKey] = Counter()
        """Requests that expect a block."""
        self._expected: dict[str, list[BlockKey]] = {}
        """Expected blocks by request."""

    @property
    def capacity_bytes(self) -> int:
        """Byte limit of this engine's blocks."""
        return self._own.capacity_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of this engine's blocks."""
        return self._own.num_bytes

    def holds(self, key: BlockKey) -> bool:
        """Return whether a block is here or offered."""
        return key in self._offered or self._own.holds(key)

    def admit(self, key: BlockKey, pinned: Any) -> list[BlockKey] | None:
        """Make room for a block of this engine."""
        return self._own.admit(key, pinned)

    def mark_stored(self, key: BlockKey) -> None:
        """Hold an admitted block."""
        self._own.mark_stored(key)

    def touch(self, key: BlockKey) -> None:
        """Count a use of a block."""
        self._own.touch(key)

    def discard(self, key: BlockKey) -> None:
        """Remove a block and its offer."""
        self._offered.pop(key, None)
        self._own.discard(key)

    # --- other engines

    def offer(self, blocks: Sequence[int]) -> Mapping[str, Any]:
        """Return the `kv_transfer_params` for another engine."""
        address = self._address
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": address.engine_id,
            "remote_host": address.host,
            "remote_port": address.port,
            "remote_seal": _sign(self._token, address),
            "remote_block_ids": [*blocks],
        }

    def expect(self, request_id: str, keys: Iterable[BlockKey], params: Mapping[str, Any]) -> None:
        """Register the offered blocks that are not here, for a request."""
        source = msgspec.msgpack.encode(msgspec.convert(params, Offer).source)
        expected = [key for key in keys if not self._own.holds(key)]
        self.forget(request_id)
        self._expected[request_id] = expected
        self._num_requests.update(expected)
        self._offered.update(dict.fromkeys(expected, source))

    def forget(self, request_id: str) -> None:
        """Drop a request's expected blocks."""
        for key in self._expected.pop(request_id, ()):
            self._num_requests[key] -= 1
            if not self._num_requests[key]:
                del self._num_requests[key]
                self._offered.pop(key, None)

    def source(self, key: BlockKey) -> bytes:
        """Return the encoded address of a block's engine; empty: this one."""
        return self._offered.get(key, b"")


def _token(own: Settings) -> bytes:
    if bool(own.token) == bool(own.token_file):
        raise ConfigError(
            f"{FLAG}.{EXTRA} needs token or token_file: the shared secret of all engines that "
            "exchange blocks."
        )
    token = own.token
    if not token:
        file = Path(own.token_file).expanduser()
        token = read_option_text(f"{FLAG}.{EXTRA}.token_file", file, MAX_TOKEN_BYTES).strip()
    if len(token) < MIN_TOKEN_LENGTH:
        raise ConfigError(
            f"{FLAG}.{EXTRA}.token: got {len(token)} characters; expected {MIN_TOKEN_LENGTH} or "
            "more."
        )
    return token.encode()


def _sign(token: bytes, address: EngineAddress) -> str:
    return hmac.digest(token, b"engine-kv/offer/" + msgspec.msgpack.encode(address), "sha256").hex()
