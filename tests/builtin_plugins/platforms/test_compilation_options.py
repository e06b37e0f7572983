"""`-O`, `--compilation-config` and CUDA graph flags: resolved or rejected."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.platforms.cpu.platform import CpuPlatform
from builtin_plugins.platforms.recording import COMPILER_KEYS, RecordingOptions
from core import LLM, SamplingParams
from core.config import EngineConfig
from core.errors import ConfigError
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.platforms.fake_gpu import NO_CPU, FakeGpu

FAKE = str(Path(__file__).with_name("fake_gpu_plugin.py"))


def config_of(eager: bool = False, **options: Any) -> EngineConfig:
    config = EngineConfig()
    scheduler = replace(config.scheduler, max_num_seqs=20, max_num_batched_tokens=64)
    return replace(
        config,
        options=options,
        scheduler=scheduler,
        model=replace(config.model, enforce_eager=eager),
    )


def sizes_of(**options: Any) -> tuple[int, ...]:
    platform = FakeGpu()
    config = config_of(**options)
    platform.start(config)
    return tuple(platform.sizes(config))


@pytest.mark.parametrize(
    ("options", "decodes", "mixed"),
    [
        ({}, True, True),
        ({"optimization_level": "O0"}, False, False),
        ({"optimization_level": 0}, False, False),
        ({"optimization_level": 1}, True, False),
        ({"optimization_level": "O3"}, True, True),
        ({"compilation_config": 0}, True, True),
        ({"compilation_config": {"mode": "NONE", "backend": ""}}, True, True),
        ({"compilation_config": {"cudagraph_mode": "none"}}, False, False),
        ({"compilation_config": {"cudagraph_mode": 0}}, False, False),
        ({"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}}, True, False),
        ({"compilation_config": {"cudagraph_mode": "full"}, "optimization_level": 0}, True, True),
        (
            {"compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}, "eager": True},
            False,
            False,
        ),
        ({"cudagraph_capture_sizes": []}, False, False),
        ({"max_cudagraph_capture_size": 0}, False, False),
    ],
)
def test_recording_options_resolve(options: dict[str, Any], decodes: bool, mixed: bool) -> None:
    requested = RecordingOptions.from_config(config_of(**options))
    assert (requested.decodes, requested.mixed) == (decodes, mixed)
    assert bool(sizes_of(**options)) == decodes


def test_capture_sizes_follow_flags() -> None:
    assert sizes_of()[-1] == 64
    assert sizes_of(optimization_level="O1") == (1, 2, 4, 8, 16, 24)
    assert sizes_of(max_cudagraph_capture_size=8) == (1, 2, 4, 8)
    assert sizes_of(cudagraph_capture_sizes=[40, 3, 3]) == (3, 40)
    assert sizes_of(
        compilation_config={"cudagraph_capture_sizes": [5, 9], "max_cudagraph_capture_size": 6}
    ) == (5,)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"compilation_config": 3}, r"--compilation-config\.mode 3 selects torch\.compile"),
        ({"compilation_config": {"level": True}}, r"\.level True selects torch\.compile"),
        (
            {"compilation_config": {"mode": "VLLM_COMPILE"}},
            r"\.mode 'VLLM_COMPILE' selects torch\.compile",
        ),
        (
            {"compilation_config": {"cudagraph_mode": "PIECEWISE"}},
            r"cudagraph_mode 'PIECEWISE' is not served \(attention",
        ),
        (
            {"compilation_config": {"cudagraph_mode": "FUL"}},
            r"cudagraph_mode 'FUL' is not served; it is one of NONE, FULL",
        ),
        (
            {"compilation_config": {"cudagraph_modes": 0}},
            r"cudagraph_modes is not known; did you mean 'cudagraph_mode'",
        ),
        (
            {"compilation_config": {"cudagraph_capture_sizes": "8"}},
            r"cudagraph_capture_sizes: got '8'; expected a list",
        ),
        (
            {"cudagraph_capture_sizes": [0]},
            r"--cudagraph-capture-sizes: got 0; expected an integer of at least 1",
        ),
        (
            {"max_cudagraph_capture_size": -1},
            r"--max-cudagraph-capture-size: got -1; expected an integer",
        ),
        (
            {
                "max_cudagraph_capture_size": 8,
                "compilation_config": {"max_cudagraph_capture_size": 8},
            },
            r"--max-cudagraph-capture-size and --compilation-config\.max_cudagraph_capture_size "
            r"are both given",
        ),
    ],
)
def test_invalid_recording_options_are_rejected(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        FakeGpu().start(config_of(**options))


def test_torch_compile_options_are_rejected() -> None:
    for key in COMPILER_KEYS:
        with pytest.raises(ConfigError, match=rf"\.{key} \['x'\] has no effect"):
            FakeGpu().start(config_of(compilation_config={key: ["x"]}))


def test_cpu_supports_levels_but_no_cuda_graphs() -> None:
    requested: tuple[tuple[dict[str, Any], bool], ...] = (
        ({"optimization_level": "O0"}, True),
        ({"optimization_level": "O1"}, False),
        ({"eager": True}, True),
        (
            {"compilation_config": {"cudagraph_mode": "NONE"}},
            False,
        ),  # there are none, and other recordings stay
        ({"cudagraph_capture_sizes": [], "max_cudagraph_capture_size": 0}, False),
    )
    for options, eager in requested:
        platform = CpuPlatform()
        platform.start(config_of(**options))
        assert platform._eager == eager
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"cudagraph_capture_sizes": [8]}, "--cudagraph-capture-sizes"),
        ({"max_cudagraph_capture_size": 8}, "--max-cudagraph-capture-size"),
        ({"compilation_config": {"cudagraph_mode": "FULL"}}, "--compilation-config.cudagraph_mode"),
        (
            {"compilation_config": {"cudagraph_capture_sizes": [8]}},
            "--compilation-config.cudagraph_capture_sizes",
        ),
    )
    for options, flag in refused:
        with pytest.raises(
            ConfigError,
            match=rf"^{re.escape(flag)} applies to CUDA graphs only.*-O0 or --enforce-eager",
        ):
            CpuPlatform().start(config_of(**options))


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture",
    ["LlamaForCausalLM", "Gemma2ForCausalLM", "DeepseekV3ForCausalLM", "MixtralForCausalLM"],
)
def test_captured_mixed_steps_have_equal_tokens(architecture: str, tmp_path: Path) -> None:
    folder = make_checkpoint(architecture, tmp_path / "model", seed=1)
    prompts = [
        {"prompt_token_ids": [(7 * i + 13 * n) % 200 for i in range(n)]}
        for n in (17, 3, 9, 4, 21, 6)
    ]
    params = [
        SamplingParams(temperature=0.7, seed=3, max_tokens=n, ignore_eos=True)
        for n in (6, 2, 3, 5, 4, 2)
    ]
    sizes: dict[str, Any] = {"max_num_seqs": 3, "max_model_len": 64, "max_num_batched_tokens": 8}

    def tokens(**settings: Any) -> list[list[int]]:
        given = {
            "num_gpu_blocks_override": 60,
            "dtype": "float32",
            "skip_tokenizer_init": True,
            **sizes,
            **settings,
        }
        with LLM(str(folder), **given) as llm:
            return [
                list(out.outputs[0].token_ids)
                for out in llm.generate(prompts, params, use_tqdm=False)
            ]

    target = tokens(device="cpu")
    assert tokens(device="fake", plugins=[FAKE, *NO_CPU]) == target
    assert FakeGpu.made is not None
    assert {kind[2] for kind in FakeGpu.made._recorded} == {True, False}, (
        "both kinds of steps were recorded"
    )
    assert (
        tokens(
            device="fake",
            plugins=[FAKE, *NO_CPU],
            compilation_config={"cudagraph_mode": "FULL_DECODE_ONLY"},
        )
        == target
    )
    assert {kind[2] for kind in FakeGpu.made._recorded} == {True}
