"""What every KV connector must hold to: what it says it has is what was written, or it says that it
has not.

Whole engines over a connector that fails are tried with `builtin_plugins.kv_connectors.testing`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from builtin_plugins.kv_connectors.contract import (
    BlockKey,
    KVConnector,
    KVTransferConfig,
    StoreParts,
)
from core.model_spec.kv import FullAttention, GroupLayout, KVLayout, PoolLayout, SlidingWindow

if TYPE_CHECKING:
    from core.testing.conformance import Subject

CONTRACT = KVConnector
_SLOT_BYTES = (256, 96)
_SLOTS = (3, 1)
LAYOUT = KVLayout(
    groups=[
        GroupLayout(FullAttention(1, 8, "float32"), [0, 1, 2], 4, 0),
        GroupLayout(SlidingWindow(1, 3, "float32", window=8), [3], 4, 1),
    ],
    pools=[PoolLayout(8, _SLOT_BYTES[0], _SLOTS[0]), PoolLayout(8, _SLOT_BYTES[1], _SLOTS[1])],
    hash_block_size=4,
)
"""Two groups with blocks of unequal bytes."""


def check_what_is_written_is_read(subject: Subject) -> None:
    """Every byte of every part, and the checksum, of several groups in any order."""
    with _opened(subject) as (_, store):
        blocks = {_key(i): _block(i) for i in range(6)}
        for key, block in blocks.items():
            store.write(key, block, _checksum(key))
        for key, block in reversed(blocks.items()):
            found = _empty(key.group)
            assert store.read(key, found) == _checksum(key), (
                f"{subject.entry.name}: another checksum came back."
            )
            assert all(map(np.array_equal, found, block)), (
                f"{subject.entry.name}: other bytes came back."
            )


def check_what_is_written_again_is_the_newer(subject: Subject) -> None:
    """A key may be dropped and come again, and the caller's memory is its own after `write`."""
    with _opened(subject) as (_, store):
        key = _key(0)
        block = _block(1, group=0)
        store.write(key, block, _checksum(key))
        store.drop(key)
        newer = [part + 1 for part in block]
        store.write(key, newer, b"n" * 16)
        for part in newer:
            part += 1
        found = _empty(0)
        assert store.read(key, found) == b"n" * 16, (
            f"{subject.entry.name}: the old checksum came back."
        )
        expected = [part + 1 for part in block]
        assert all(map(np.array_equal, found, expected)), (
            f"{subject.entry.name}: it is not what was written last."
        )


def check_what_lies_in_memory_is_what_is_read(subject: Subject) -> None:
    """A block reserved in such a store reads like a written one, and what was
    written lies in memory.
    """
    with _opened(subject) as (_, store):
        if not hasattr(store, "locate"):
            return
        assert store.checksum == "sum", f"{subject.entry.name}: what is copied is sealed by sums."
        for i in range(4):
            key = _key(i)
            data = np.concatenate(_block(i))
            if i < 2:
                buffer = store.allocate(key)
                assert buffer.nbytes == data.nbytes, (
                    f"{subject.entry.name}: a reserved buffer is as large as a block."
                )
                np.copyto(buffer, data)
                store.commit(key, buffer, _checksum(key))
            else:
                store.write(key, _block(i), _checksum(key))
        for i in range(4):
            key = _key(i)
            found = _empty(_key(i).group)
            held, checksum = store.locate(key)
            assert np.array_equal(held, np.concatenate(_block(i))), (
                f"{subject.entry.name}: other bytes lie there."
            )
            assert checksum == store.read(key, found) == _checksum(key), (
                f"{subject.entry.name}: another checksum came back."
            )
            assert all(map(np.array_equal, found, _block(i))), (
                f"{subject.entry.name}: other bytes came back."
            )


def check_what_it_does_not_have_is_no_block(subject: Subject) -> None:
    """Reading what was never written, or was dropped, raises; dropping it does nothing."""
    with _opened(subject) as (_, store):
        store.write(_key(0), _block(0), _checksum(_key(0)))
        store.drop(_key(0))
        store.drop(_key(2))
        for key in (_key(0), _key(1), _key(2)):
            try:
                store.read(key, _empty(key.group))
            except Exception:  # noqa: BLE001 - whatever it raises says that it is gone
                continue
            raise AssertionError(
                f"{subject.entry.name}: it has read a block that is not there; raise instead."
            )


def check_keys_of_groups_differ(subject: Subject) -> None:
    """One chain's key names a block in each group."""
    with _opened(subject) as (_, store):
        first = BlockKey(0, b"k" * 32)
        second = BlockKey(1, b"k" * 32)
        store.write(first, _block(0, group=0), b"a" * 16)
        store.write(second, _block(1, group=1), b"b" * 16)
        checksums = store.read(first, _empty(0)), store.read(second, _empty(1))
        assert checksums == (b"a" * 16, b"b" * 16), (
            f"{subject.entry.name}: keys of two groups are taken for one."
        )


def check_the_survey_names_what_can_be_read(subject: Subject) -> None:
    """Another store over the same folder has what its directory lists, of its own
    fingerprint only.
    """
    with _opened(subject) as (connector, store):
        for i in range(4):
            store.write(_key(i), _block(i), _checksum(_key(i)))
        again = connector.store(_parts())
        for key in again.survey():
            assert again.read(key, _empty(key.group)) == _checksum(key), (
                f"{subject.entry.name}: the survey names what is not there."
            )
        again.close()
        other = connector.store(_parts("f" * 64))
        assert not list(other.survey()), (
            f"{subject.entry.name}: it names blocks of another fingerprint."
        )
        other.close()


def check_a_look_finds_what_can_be_read(subject: Subject) -> None:
    """A lookup finds what was written and not deleted, and nothing else."""
    with _opened(subject) as (connector, store):
        if not getattr(connector, "supports_lookup", False):
            return
        for i in range(4):
            store.write(_key(i), _block(i), _checksum(_key(i)))
        store.drop(_key(2))
        found = {*store.lookup([_key(i) for i in range(6)])}
        assert found == {_key(0), _key(1), _key(3)}, (
            f"{subject.entry.name}: it says of other blocks that it has them."
        )
        assert not {*store.lookup([_key(4), _key(5)])}, (
            f"{subject.entry.name}: it says that it has what it has not."
        )


def check_the_directory_keeps_to_its_bytes(subject: Subject) -> None:
    """It never holds more than it may, lets nothing go that is pinned, and holds what was stored
    and neither lost nor let go.
    """
    with _opened(subject) as (connector, _):
        directory = connector.directory(LAYOUT, 1)
        sizes = [LAYOUT.pools[group.pool].block_bytes for group in LAYOUT.groups]
        held: set[BlockKey] = set()
        pinned = {_key(0), _key(1)}
        for i in range(3 * directory.capacity_bytes // min(sizes)):
            key = _key(i)
            going = directory.admit(key, pinned)
            if going is None:
                continue
            assert not pinned & {*going}, f"{subject.entry.name}: a pinned block was let go."
            assert not directory.holds(key), (
                f"{subject.entry.name}: it lists a block that was not stored."
            )
            held -= {*going}
            if i % 5 == 2:
                directory.discard(key)
            else:
                directory.mark_stored(key)
                held.add(key)
            directory.touch(_key(i // 2))
            assert directory.num_bytes <= directory.capacity_bytes, (
                f"{subject.entry.name}: it holds more than it may."
            )
            assert directory.num_bytes == sum(sizes[each.group] for each in held), (
                f"{subject.entry.name}: it miscounts."
            )
        assert held, f"{subject.entry.name}: it holds nothing."
        for i in range(3 * directory.capacity_bytes // min(sizes)):
            assert directory.holds(_key(i)) == (_key(i) in held), (
                f"{subject.entry.name}: it holds others than were stored."
            )
        directory.discard(_key(10**6))


def check_a_lost_block_may_come_again(subject: Subject) -> None:
    """What was admitted and is not there leaves no trace: its key is admitted like any other."""
    with _opened(subject) as (connector, _):
        directory = connector.directory(LAYOUT, 1)
        for _ in range(2):
            assert directory.admit(_key(0), ()) is not None, (
                f"{subject.entry.name}: a key that was lost is not admitted."
            )
            directory.discard(_key(0))
            assert directory.num_bytes == 0, (
                f"{subject.entry.name}: a block that was lost is counted."
            )


@contextmanager
def _opened(subject: Subject) -> Iterator[tuple[Any, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        extra = subject.target.example_settings(folder)
        settings = KVTransferConfig(
            subject.entry.name, kv_connector_extra_config=extra, kv_buffer_size=1 << 16
        )
        connector = subject.target(subject.config, settings)
        store = connector.store(_parts())
        try:
            yield connector, store
        finally:
            store.close()


def _parts(fingerprint: str = "0" * 64) -> StoreParts:
    block_bytes = [LAYOUT.pools[group.pool].block_bytes for group in LAYOUT.groups]
    return StoreParts(LAYOUT, 0, 1, fingerprint, block_bytes)


def _key(index: int) -> BlockKey:
    return BlockKey(index % 2, index.to_bytes(32, "big"))


def _block(index: int, group: int | None = None) -> list[Any]:
    group = index % 2 if group is None else group
    numbers = np.random.default_rng(index)
    return [
        numbers.integers(0, 255, _SLOT_BYTES[group], dtype=np.uint8) for _ in range(_SLOTS[group])
    ]


def _empty(group: int) -> list[Any]:
    return [np.zeros(_SLOT_BYTES[group], np.uint8) for _ in range(_SLOTS[group])]


def _checksum(key: BlockKey) -> bytes:
    return key.key[-16:]
