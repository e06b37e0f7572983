"""Micro-kernel proofs: the engine runs with few plugins, without any one folder, without hooks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core.testing.plugins import hook_calls

ROOT = Path(__file__).resolve().parents[3]
LEAST = ["none", "scripted", "platform_cpu", "attention_reference", "runner_generate"]
FOLDERS = sorted(
    p.name for p in (ROOT / "builtin_plugins").iterdir() if p.is_dir() and p.name != "__pycache__"
)
ESSENTIAL = {
    "model_sources": "no plugin knows the model",
    "platforms": "no such platform finds a device",
    "runners": "runner",
    "attention_backends": "attention",
}
"""Folders that the scripted model needs, and the expected error without them."""

RUN = """
import gc
import importlib
import os
import sys

def run():
    from core import LLM, SamplingParams
    with LLM(
        "scripted:", max_model_len=256, kv_cache_memory_bytes=1 << 20, log_level="error"
    ) as llm:
        params = SamplingParams(max_tokens=40, temperature=0)
        out = llm.generate("hello there", params, use_tqdm=False)
    return out[0].outputs[0].text

# Once for all runs: the kernel, torch and what else a run imports, but no builtin.
reading, writing = os.pipe()
if os.fork() == 0:
    run()
    names = [name for name in sys.modules if not name.startswith(("builtin_plugins", "__m"))]
    os.write(writing, " ".join(names).encode())
    os._exit(0)
os.close(writing)
names = os.fdopen(reading).read().split()
os.wait()
for name in names:
    try:
        importlib.import_module(name)
    except ImportError:
        pass  # made by another module
assert not [name for name in sys.modules if name.startswith("builtin_plugins")]

gc.collect()
gc.freeze()  # keeps shared pages shared
for name in sys.argv[1:]:
    os.rename(f"builtin_plugins/{name}", "aside")
    if os.fork() == 0:
        break
    status = os.waitstatus_to_exitcode(os.wait()[1])
    os.rename("aside", f"builtin_plugins/{name}")
    with open(f"{name}.status", "w") as file:
        file.write(str(status))
else:
    sys.exit()

for number, stream in ((1, "out"), (2, "err")):
    os.dup2(os.open(f"{name}.{stream}", os.O_WRONLY | os.O_CREAT), number)
print(run(), flush=True)
os._exit(0)  # skips the slow teardown of torch
"""
"""Removes one builtin folder at a time and runs the rest in a process of its own."""


def test_engine_runs_with_model_platform_and_attention_only() -> None:
    with LLM("scripted:", plugins=LEAST, max_model_len=256, kv_cache_memory_bytes=1 << 20) as llm:
        out = llm.generate(
            "hello there", SamplingParams(max_tokens=40, temperature=0), use_tqdm=False
        )
    assert out[0].outputs[0].text == "hello there"


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages, with the output of a run without each builtin folder."""
    folder = tmp_path_factory.mktemp("trimmed")
    for package in ("core", "builtin_plugins"):
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    subprocess.run([sys.executable, "-c", RUN, *FOLDERS], cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("name", FOLDERS)
def test_engine_runs_without_any_single_builtin_folder(trimmed: Path, name: str) -> None:
    status, out, err = (
        (trimmed / f"{name}.{suffix}").read_text() for suffix in ("status", "out", "err")
    )
    if name in ESSENTIAL:
        assert status != "0"
        assert ESSENTIAL[name] in err
    else:
        assert status == "0", err
        assert out.strip().endswith("hello there")


def test_no_hook_is_called_during_steps() -> None:
    with LLM("scripted:", max_model_len=512, kv_cache_memory_bytes=1 << 20) as llm:
        llm.add_request("a", "x" * 200, SamplingParams(max_tokens=150, temperature=0))
        llm.step()
        with hook_calls() as calls:
            for _ in range(100):
                llm.step()
        assert llm.has_unfinished_requests()
    assert calls == []
