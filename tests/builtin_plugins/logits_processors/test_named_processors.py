"""Processors given by path or as a class, their declared arguments, and the adapter for one request
at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from builtin_plugins.logits_processors.api import RequestLogitsProcessor, RowFunction
from core import LLM, SamplingParams
from core.api import InvalidRequest
from core.errors import ConfigError


class Echo(RequestLogitsProcessor):
    """Says a letter of the prompt, chosen by `echo`, again and again."""

    extra_args: Mapping[str, Any] = {"echo": int}
    excludes = ("min_p",)

    def new_request(self, sampling: SamplingParams) -> RowFunction | None:
        index = (sampling.extra_args or {}).get("echo")
        return None if index is None else lambda prompt, output, logits: only(logits, prompt[index])


class Counting(RequestLogitsProcessor):
    """Counts its own output: 0, 1, 2 ..."""

    def new_request(self, sampling: SamplingParams) -> RowFunction | None:
        if "count" not in (sampling.extra_args or {}):
            return None
        return lambda prompt, output, logits: only(logits, ord("0") + len(output))


class NoProcessor:
    """Has none of the methods."""


def only(logits: torch.Tensor, token: int) -> torch.Tensor:
    return torch.full_like(logits, float("-inf")).index_fill_(0, torch.tensor([token]), 0.0)


def scripted(*processors: Any) -> LLM:
    return LLM(
        "scripted:", max_model_len=128, log_level="error", logits_processors=list(processors)
    )


def say(llm: LLM, prompt: str, **extra: Any) -> str:
    params = SamplingParams(temperature=0, max_tokens=4, extra_args=extra or None)
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].text


def test_named_processors_serve_only_requesting_rows() -> None:
    with scripted(Echo, f"{__name__}:Counting") as llm:
        assert say(llm, "abcd") == "abcd"
        assert say(llm, "abcd", echo=1) == "bbbb"
        assert say(llm, "abcd", count=True) == "0123"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda p: p.clone(extra_args={"echo": "far"}),
            "extra_args.echo: expected `int`, got `str`",
        ),
        (lambda p: p.clone(min_p=0.5), "extra_args.echo: cannot be combined with min_p"),
    ],
)
def test_unsupported_processor_parameters_are_rejected(
    change: Callable[[SamplingParams], SamplingParams], message: str
) -> None:
    with scripted(Echo) as llm, pytest.raises(InvalidRequest, match=message):
        llm.generate("x", change(SamplingParams(extra_args={"echo": 0})))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nonsense", "--logits-processors nonsense is not module:Class"),
        (
            "no_such_module:Class",
            r"no_such_module:Class cannot be imported: No module named 'no_such_module'\.$",
        ),
        (f"{__name__}:Missing", "Missing"),
        (
            f"{__name__}:NoProcessor",
            "names no logits processor class; it has no wants, added, removed, apply",
        ),
        (f"{__name__}:only", "names no logits processor class"),
    ],
)
def test_invalid_processor_path_stops_startup(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scripted(path)


def test_processor_error_fails_only_its_request(caplog: pytest.LogCaptureFixture) -> None:
    with scripted(Echo) as llm:
        params = SamplingParams(temperature=0, max_tokens=4)
        params_list = [params.clone(extra_args={"echo": 99}), params]
        failed, fine = llm.generate(["abcd", "abcd"], params_list, use_tqdm=False)
    assert failed.error is not None
    assert failed.error.endswith(f"failed in request {failed.request_id!r}; see the engine log.")
    assert "IndexError" in caplog.text
    assert fine.outputs[0].text == "abcd"
