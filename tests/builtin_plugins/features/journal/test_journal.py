"""Journals replay the scheduler exactly, and differences are reported."""

import os
import random
from contextlib import suppress

import msgspec
import pytest

import core.testing.replay as replay_module
from builtin_plugins.features.journal.recorder import Journal
from builtin_plugins.scheduling_policies.priority import Priority
from core import option_files
from core.errors import EngineError
from core.testing.replay import replay
from tests.core.scheduler.fake_worker import VOCAB, Engine


def record(path, *, policy=None, **options):
    """Run a busy engine and write its journal."""
    rng = random.Random(3)
    engine = Engine("hybrid", num_blocks=40, depth=2, policy=policy, **options)
    engine.record(str(path))
    for i in range(30):
        length = rng.randrange(1, 24)
        engine.add(
            f"r{i}",
            [rng.randrange(1, VOCAB) for _ in range(length)],
            rng.randrange(1, 16),
            priority=i % 3,
        )
        if rng.random() < 0.3:
            engine.abort(f"r{rng.randrange(30)}")
        if rng.random() < 0.7:
            engine.step()
    engine.run()
    engine.journal.close()
    engine.journal.close()
    return engine


def test_replay_returns_identical_plans(tmp_path):
    engine = record(tmp_path / "journal")
    report = replay(str(tmp_path / "journal"))
    assert report.identical
    assert report.num_plans == len(engine.plans)
    assert report.note is None


def test_replay_requires_the_recorded_policy(tmp_path):
    record(tmp_path / "journal", policy=Priority())
    assert replay(str(tmp_path / "journal"), policy=Priority()).identical
    with pytest.raises(EngineError, match="policy 'Priority'"):
        replay(str(tmp_path / "journal"))


def test_truncated_journal_is_replayed_to_its_end(tmp_path):
    engine = record(tmp_path / "journal")
    data = (tmp_path / "journal").read_bytes()
    for missing in (1, 5, len(data) // 3):
        (tmp_path / "cut").write_bytes(data[:-missing])
        report = replay(str(tmp_path / "cut"))
        assert report.identical
        assert 0 < report.num_plans <= len(engine.plans)
        assert report.note is not None or missing > 5  # the long cut may fall between two frames


def test_replay_reports_the_first_difference(tmp_path):
    record(tmp_path / "journal")
    with open(tmp_path / "journal", "rb") as file:
        frames, _ = replay_module._read_frames(file.read())
    changed = None
    with open(tmp_path / "changed", "wb") as file:
        for frame in frames:
            event = msgspec.msgpack.decode(frame)
            if (
                changed is None
                and isinstance(event, list)
                and event[0] == "plan"
                and event[2] > 9
                and event[3][6]
            ):
                changed = event[2]
                event[3][6][0] += 1
                frame = msgspec.msgpack.encode(event)
            file.write(len(frame).to_bytes(4, "little") + frame)
    report = replay(str(tmp_path / "changed"))
    assert not report.identical
    assert report.difference.startswith(f"schedule call {changed}: recorded StepPlan(")


def test_failures_resets_and_wakes_are_replayed(tmp_path):
    engine = Engine(depth=2)
    engine.record(str(tmp_path / "journal"))
    engine.add("a", [1, 2, 3], 9, eos_token_ids=())
    engine.schedule()
    engine.schedule()
    engine.scheduler.fail_in_flight("gone")
    engine.worker.queue.clear()
    engine.scheduler.reset_prefix_cache()
    engine.scheduler.wake("a")
    engine.scheduler.release("a")
    engine.add("b", [1, 2, 3], 3)
    engine.run()
    engine.journal.close()
    report = replay(str(tmp_path / "journal"))
    assert report.identical
    assert report.num_plans == len(engine.plans)


def test_replay_rejects_other_files(tmp_path):
    (tmp_path / "text").write_bytes(b"hello world, this is not a journal")
    with pytest.raises(EngineError, match="is no journal"):
        replay(str(tmp_path / "text"))
    (tmp_path / "short").write_bytes((4).to_bytes(4, "little") + b"abcd")
    with pytest.raises(EngineError, match="is no journal of version"):
        replay(str(tmp_path / "short"))


@pytest.mark.parametrize("kind", ["FIFO", "folder", "device", "sparse", "zeros", "deep"])
def test_hostile_journal_is_refused(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(option_files, "WRITER_S", 0.05)
    path = tmp_path / "journal"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "deep":
        path.write_bytes((100_000).to_bytes(4, "little") + b"\x91" * 100_000)
    else:
        path.touch()
        os.truncate(path, 10 << 30 if kind == "sparse" else 1 << 20)
    with pytest.raises(EngineError, match="journal"):
        replay(str(path))


def change_header(path, **changes):
    """Write a journal with other construction parameters."""
    data = path.read_bytes()
    end = 4 + int.from_bytes(data[:4], "little")
    header = msgspec.msgpack.decode(data[4:end])
    for name, value in changes.items():
        *outer, last = name.split("__")
        inner = header
        for part in outer:
            inner = inner[int(part) if part.isdigit() else part]
        inner[last] = value
    head = msgspec.msgpack.encode(header)
    path.write_bytes(len(head).to_bytes(4, "little") + head + data[end:])


@pytest.mark.parametrize(
    "changes",
    [
        {"layout__pools__0__num_blocks": 2**60},
        {"layout__pools__0__num_blocks": 0},
        {"layout__groups__0__block_size": 0},
        {"layout__groups__0__pool": 7},
        {"layout__hash_block_size": 2**62},
        {"layout__pools": []},
        {"layout__groups": []},
        {"limits__max_num_seqs": 2**62},
        {"limits__max_num_batched_tokens": 2**62},
        {"limits__max_model_len": -1},
        {"depth": 2**40},
        {"depth": 0},
    ],
)
def test_sizes_of_a_header_are_bounded(tmp_path, changes):
    record(tmp_path / "journal")
    change_header(tmp_path / "journal", **changes)
    with pytest.raises(EngineError, match="is no journal"):
        replay(str(tmp_path / "journal"))


def test_calls_without_a_plan_are_bounded(tmp_path):
    record(tmp_path / "journal")
    with (tmp_path / "journal").open("ab") as file:
        frame = msgspec.msgpack.encode(("reset", 0.0, 2**62, None))
        file.write(len(frame).to_bytes(4, "little") + frame)
    with pytest.raises(EngineError, match="calls without a plan"):
        replay(str(tmp_path / "journal"))


def test_changed_bytes_give_a_report_or_an_error(tmp_path):
    record(tmp_path / "journal")
    data = (tmp_path / "journal").read_bytes()
    rng = random.Random(0)
    for _ in range(150):
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        (tmp_path / "changed").write_bytes(changed)
        with suppress(EngineError):
            replay(str(tmp_path / "changed"))


def test_unwritable_journal_error_names_the_file(tmp_path):
    with pytest.raises(EngineError, match=r"--journal .*missing/journal cannot be written"):
        Journal(str(tmp_path / "missing" / "journal"), Engine().scheduler)


def test_full_disk_ends_the_journal_and_not_the_scheduler(tmp_path, caplog):
    expected = record(tmp_path / "journal")
    with caplog.at_level("ERROR", logger="core"):
        engine = record("/dev/full")
    assert len(engine.plans) == len(expected.plans)
    (logged,) = [each for each in caplog.records if "--journal ends here" in each.message]
    assert "No space left" in logged.message
