"""`engine doctor`: every fault is named with what to do, and none ends the report."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from builtin_plugins.commands.doctor import command, machine, software
from builtin_plugins.commands.doctor.finding import Finding
from core.cli import CommandContext
from core.cli.main import main
from core.config.build import assemble
from core.config.fields import FieldTable
from core.testing.plugins import fake_dist, tmp_plugin

Files = Callable[..., Path]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Write a system's files and return their root; names are paths with a slash for each double
    underscore.
    """

    def write(**contents: str) -> Path:
        for name, text in contents.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def only(findings: Iterable[Finding], subject: str) -> Finding:
    (found,) = (finding for finding in findings if finding.subject == subject)
    return found


def context(*plugins: str) -> CommandContext:
    table = FieldTable()
    layer = {"plugins": SimpleNamespace(value=list(plugins), origin="test")}
    config, provenance = assemble(table, [layer])  # type: ignore[list-item]
    return CommandContext(
        argparse.Namespace(port=None, model=None, json=True), config, provenance, table
    )


# --- the report


def test_report_lists_every_subject(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    subjects = {line[6:20].strip() for line in lines[:-1]}
    assert {
        "engine",
        "python",
        "cores",
        "memory",
        "tmp",
        "open files",
        "torch",
        "kernels",
        "plugins",
    } <= subjects
    assert status == (0 if lines[-1].endswith(" 0 failed") else 1)


def test_collect_env_and_json_match_doctor(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = main(["collect-env", "--json"])
    report = json.loads(capsys.readouterr().out)
    failed = [finding for finding in report["findings"] if finding["status"] == "fail"]
    assert report["fails"] == bool(failed) == bool(status)
    assert "torch" in {finding["subject"] for finding in report["findings"]}


def test_failing_check_is_a_finding() -> None:
    checks = [("odd", lambda: [1 / 0]), ("even", lambda: [Finding("ok", "even", "two")])]
    findings = list(command.examine(checks))  # type: ignore[arg-type]
    assert [finding.status for finding in findings] == ["fail", "ok"]
    assert findings[0].text == "check failed: ZeroDivisionError: division by zero"


def test_advice_follows_the_text_as_a_sentence_of_its_own() -> None:
    assert str(Finding("warn", "port", "8000 is used", "Take another")).endswith(
        " 8000 is used. Take another"
    )
    assert str(Finding("warn", "port", "did you mean 80?", "Take it")).endswith(
        " did you mean 80? Take it"
    )


# --- machine


def test_processor_without_avx2_is_warned_about(files: Files) -> None:
    root = files(proc__cpuinfo="model name\t: Old\nflags\t: fpu sse2\n")
    found = only(machine.check_processor(root), "processor")
    assert (found.status, found.text) == ("warn", "Old: no supported instruction set")
    root = files(proc__cpuinfo="model name\t: New\nflags\t: fpu avx2 avx512f amx_bf16\n")
    found = only(machine.check_processor(root), "processor")
    assert (found.status, found.text) == ("ok", "New: avx2, avx512f, amx_bf16")


def test_cpu_quota_below_the_cores_is_a_warning(files: Files) -> None:
    found = only(
        machine.check_processor(files(sys__fs__cgroup__cpu_dot_max="50000 100000\n")), "cores"
    )
    assert found.status == "warn"
    assert found.advice.endswith("--num-threads 1")
    assert (
        only(
            machine.check_processor(files(sys__fs__cgroup__cpu_dot_max="max 100000\n")), "cores"
        ).status
        == "ok"
    )


@pytest.mark.parametrize(("available", "status"), [(100, "fail"), (1000, "warn"), (9000, "ok")])
def test_memory(available: int, status: str, files: Files) -> None:
    root = files(proc__meminfo=f"MemTotal: 16000000 kB\nMemAvailable: {available * 1024} kB\n")
    assert only(machine.check_memory(root), "memory").status == status


def test_container_limit_counts_as_memory(files: Files) -> None:
    root = files(
        proc__meminfo="MemTotal: 16000000 kB\nMemAvailable: 16000000 kB\n",
        sys__fs__cgroup__memory_dot_max=str(1 << 30),
        sys__fs__cgroup__memory_dot_current=str((1 << 30) - 1000),
    )
    found = only(machine.check_memory(root), "memory")
    assert found.status == "fail"
    assert found.text.endswith("container: 1,000 bytes free of 1.00 GiB")


def test_strict_overcommit_is_a_warning(files: Files) -> None:
    root = files(proc__sys__vm__overcommit_memory="2\n")
    assert only(machine.check_memory(root), "overcommit").status == "warn"


def test_folder_for_temporary_files_must_be_writable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(dir: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    assert only(machine.check_disk(tmp_path), "tmp").status == "ok"
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    found = only(machine.check_disk(tmp_path), "tmp")
    assert found.status == "fail"
    assert "cannot be written (Permission denied)" in found.text


def test_limits_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    limits = {
        resource.RLIMIT_NOFILE: (100, 8192),
        resource.RLIMIT_MEMLOCK: (65536, -1),
        resource.RLIMIT_AS: (1 << 30,) * 2,
    }
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    findings = list(machine.check_limits())
    assert only(findings, "open files").status == "fail"
    assert only(findings, "open files").advice.endswith("ulimit -n 8192")
    assert only(findings, "locked memory").text == "64.0 KiB"
    assert only(findings, "address space").status == "warn"


def test_used_port_fails_only_when_given() -> None:
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        port = server.getsockname()[1]
        (found,) = machine.check_port(port)
    assert found.status == "fail"
    assert "cannot be used" in found.text
    (found,) = machine.check_port(port)
    assert found.status == "ok"


def test_dead_sockets_are_listed(tmp_path: Path) -> None:
    long_ago = time.time() - 3600
    for name in ("engine-dead", "engine-alive", "engine-young", "engine-ranks-busy"):
        (tmp_path / name).mkdir()
    alive = socket.socket(socket.AF_UNIX)
    with alive:
        alive.bind(str(tmp_path / "engine-alive/up"))
        alive.listen()
        for name in ("engine-dead", "engine-young"):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(tmp_path / name / "up"))
        for name in ("engine-dead", "engine-alive"):
            os.utime(tmp_path / name, (long_ago, long_ago))
        (found,) = machine.check_leftovers(tmp_path)
    assert found.status == "warn"
    assert found.text == f"sockets of dead engines: {tmp_path / 'engine-dead'}"
    assert found.advice.endswith(f"rm -r {tmp_path / 'engine-dead'}")


# --- software


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (
            "raise ImportError('libgomp.so.1: not found')",
            "cannot be imported: ImportError: libgomp.so.1: not found",
        ),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
            "importing it kills the process with SIGILL",
        ),
    ],
)
def test_torch_import_failure_is_a_finding(script: str, text: str) -> None:
    (found,) = software.check_torch(script)
    assert (found.status, found.text) == ("fail", text)


def probed(**facts: object) -> str:
    found = {
        "torch": "9",
        "cuda": None,
        "threads": 2,
        "openmp": True,
        "devices": [],
        "library": None,
        "faults": [],
    }
    return f"print({json.dumps(json.dumps(found | facts))})"


def probed_library(**facts: object) -> str:
    speeds = {"kind": "", "decode_bytes": 12e9, "prefill_bytes": 60e9}
    found = {"path": "/lib/k.so", "isa": "avx2", "best": "avx2", "variants": ["avx2", "generic"]}
    found |= {"widens": True, "bfloat16": speeds, "int8": speeds}  # type: ignore[dict-item]
    return probed(library=found | facts)


def test_kernels_are_named_with_their_instruction_set() -> None:
    found = only(software.check_torch(probed_library()), "kernels")
    assert (found.status, found.text) == ("ok", "avx2, from /lib/k.so")
    found = only(software.check_torch(probed_library(best="amx")), "kernels")
    assert found.status == "warn"
    assert "Built without amx" in found.advice


def test_measured_speed_is_named_with_what_is_faster() -> None:
    text = only(software.check_torch(probed_library()), "speed").text
    assert "bfloat16 weights at 12.0 GB/s by one row, 60 GFLOP/s by many" in text
    assert "int8 weights at 12.0 GB/s by one row, 120 GFLOP/s by many" in text
    assert text.endswith("--quantization int8 is faster")
    text = only(software.check_torch(probed_library(widens=False)), "speed").text
    assert "--quantization" not in text


def test_int8_is_not_recommended_where_it_is_measured_to_be_slower() -> None:
    slow = {"kind": "int8", "decode_bytes": 1e9, "prefill_bytes": 1e9}
    text = only(software.check_torch(probed_library(int8=slow)), "speed").text
    assert text.endswith("bfloat16 is widened to float32 on this processor")


def test_missing_kernels_are_built_or_need_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "find_compiler", lambda: "/usr/bin/g++")
    found = only(software.check_torch(probed(faults=["k.so has ABI 0"])), "kernels")
    assert (found.status, found.text) == (
        "warn",
        "k.so has ABI 0; built with /usr/bin/g++ at the next start, in about a minute",
    )
    monkeypatch.setattr(software, "find_compiler", lambda: None)
    found = only(software.check_torch(probed()), "kernels")
    assert (found.status, found.advice) == ("warn", "Install g++")


def test_devices_are_listed() -> None:
    script = probed(cuda="13.0", devices=["Card, 139 GiB"])
    assert only(software.check_torch(script), "devices").text == "Card, 139 GiB"


def own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requires: str = "", points: str = ""
) -> None:
    """Make our distribution's metadata these."""
    info = tmp_path / "core-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: core\nVersion: 0.1.0\n{requires}")
    (info / "entry_points.txt").write_text(f"[engine.plugins]\n{points}")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_dependencies_are_checked_against_the_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requires = "".join(
        f"Requires-Dist: {name}\n"
        for name in (
            "torch>=999",
            "no-such-package>=1",
            "pluggy>=1",
            'odd; extra == "testing"',
            'even; os_name == "x"',
        )
    )
    own(tmp_path, monkeypatch, requires)
    found = only(software.check_dependencies(), "dependencies")
    assert found.status == "fail"
    assert "no-such-package>=1 is not installed" in found.text
    assert "is not >=999" in found.text
    assert "odd" not in found.text


def test_stale_metadata_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(tmp_path, monkeypatch, points="removed_plugin = builtin_plugins.gone\n")
    found = only(software.check_installation(), "metadata")
    assert found.status == "fail"
    assert "removed_plugin" in found.text
    assert found.advice == "Reinstall it: pip install -e . --no-deps"


def test_shadowing_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core/__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    assert only(software.check_installation(), "shadow").text.startswith(str(tmp_path / "core"))


# --- surroundings


def test_every_broken_plugin_is_named_with_the_reason() -> None:
    modules = {"engine_one": "import no_such_module\n", "engine_two": "1 / 0\n", "engine_three": ""}
    points = {"one": "engine_one", "two": "engine_two", "three": "engine_three"}
    with fake_dist("engine-acme", "1.2", points, modules):
        findings = list(software.check_plugins(context()))
    assert [finding.status for finding in findings] == ["ok", "fail", "fail"]
    assert "plugin 'three' (engine-acme 1.2)" in findings[0].text
    assert "plugin 'one' (engine-acme 1.2)" in findings[1].text
    assert "no_such_module" in findings[1].text
    assert "plugin 'two' (engine-acme 1.2)" in findings[2].text
    assert "--plugins no:two" in findings[2].text


def test_broken_local_plugin_is_named() -> None:
    with tmp_plugin("import no_such_module", "shaky") as path:
        findings = list(software.check_plugins(context(path)))
    assert [finding.status for finding in findings] == ["ok", "fail"]
    assert "plugin 'shaky'" in findings[1].text


def test_clashing_plugins_are_reported() -> None:
    source = """
        from core.api import Entry, hookimpl

        @hookimpl
        def engine_commands():
            return [Entry("serve", object, "another serve")]
    """
    with tmp_plugin(source, "rival") as path:
        findings = list(software.check_plugins(context(path)))
    assert [finding.status for finding in findings] == ["ok", "fail"]
    assert "have one name" in findings[1].text


def test_invalid_plugin_selection_is_a_finding() -> None:
    (found,) = software.check_plugins(context("no-such-plugin"))
    assert found.status == "fail"
    assert "no-such-plugin" in found.text


def test_variables_without_effect_are_named_and_secrets_hidden() -> None:
    environment = {
        "VLLM_USE_V1": "1",
        "ENGINE_PLUGIN": "x",
        "ENGINE_API_KEY": "secret",
        "HF_HOME": "/data",
        "SHELL": "sh",
    }
    findings = list(software.check_environment(environment))
    assert [finding.status for finding in findings] == ["ok", "warn", "warn"]
    assert findings[0].text == "ENGINE_API_KEY=***, HF_HOME=/data"
    assert findings[1].text == "ENGINE_PLUGIN is unknown; did you mean 'ENGINE_PLUGINS'?"
    assert findings[2].text == "ignored: VLLM_USE_V1"


def test_interpreter_that_runs_this_is_good_enough() -> None:
    (found,) = machine.check_python()
    assert found.status == "ok"
    assert sys.executable in found.text
