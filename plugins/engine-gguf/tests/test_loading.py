"""Log lines and tensor order of loading a file."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_gguf import method
from engine_gguf.loader import GgufLoader
from engine_gguf.source import find

from core.config.build import config_from_kwargs

Made = Callable[..., tuple[Path, Path]]
LLAMA = "LlamaForCausalLM"
SLOW = "multiplies by 12 of the weights as they are stored; they are dequantized and computed in"


@pytest.fixture(autouse=True)
def capture_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """Undo the log level that an earlier engine set."""
    for name in ("builtin_plugins.quant_methods.stored.backends", "engine_gguf.method"):
        caplog.set_level(logging.WARNING, logger=name)


def loader_of(path: Path) -> GgufLoader:
    config: Any = config_from_kwargs({"model": str(path), "dtype": "bfloat16"})
    return GgufLoader(find(str(path), config), config)


def test_dequantized_types_are_logged_once(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    slow = loader_of(made(LLAMA, {"embd": "Q8_0", "output": "Q8_0", "": "IQ4_XS"})[0])
    list(slow.headers())
    assert not caplog.records
    list(slow.tensors())
    assert [
        f"gguf: no kernel of this device {SLOW}" in record.getMessage() for record in caplog.records
    ] == [True]
    assert "bfloat16, no faster than a plain checkpoint, with" in caplog.text


def test_kernel_types_are_not_logged(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    list(loader_of(made(LLAMA, "Q8_0", tie_word_embeddings=True)[0]).tensors())
    assert not caplog.records


def test_missing_library_logs_a_warning(
    made: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config: Any = config_from_kwargs({"model": "any"})
    monkeypatch.setattr(method, "load_library", lambda: None)
    method.Gguf({"blocks": {"model.layers.0.a": "Q8_0"}}, config)
    (record,) = caplog.records
    assert record.getMessage().startswith("gguf: no kernel of this device multiplies by blocks")


def test_large_tensors_load_first(made: Made) -> None:
    loader = loader_of(made(LLAMA, "Q8_0", tie_word_embeddings=True)[0])
    found = [(name, tensor.nbytes) for name, tensor in loader.tensors()]
    stored = [(name, tensor.nbytes) for name, tensor in loader.headers()]
    large = [each for each in stored if each[1] > loader.total_bytes() // 10]
    assert found == sorted(large, key=lambda each: -each[1]) + [
        each for each in stored if each not in large
    ]
    assert 0 < len(large) < len(stored)
