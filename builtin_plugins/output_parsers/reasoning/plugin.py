"""Reasoning parsers, one entry per vLLM name."""

from __future__ import annotations

from typing import Any

from builtin_plugins.output_parsers.reasoning_bounds import REASONING_BOUNDS, ReasoningBounds
from core.api import Entry, hookimpl

FORMATS = (
    ("cohere_command3", "think:COHERE_COMMAND", "reasoning and content between tags: Command A"),
    ("cohere_command4", "think:COHERE_COMMAND", "reasoning and content between tags: Command A+"),
    (
        "deepseek_r1",
        "think:DEEPSEEK_R1",
        "reasoning up to </think>, with or without <think>: DeepSeek R1, QwQ",
    ),
    (
        "deepseek_v3",
        "think:DEEPSEEK_V3",
        "reasoning up to </think> if `thinking` enables it: DeepSeek V3.1, V3.2",
    ),
    (
        "deepseek_v4",
        "think:DEEPSEEK_V4",
        "reasoning up to </think> if `thinking` enables it: DeepSeek V4",
    ),
    (
        "deepseek_v41",
        "think:DEEPSEEK_V4",
        "reasoning up to </think> if `thinking` enables it: DeepSeek V4.1",
    ),
    ("ernie45", "think:ERNIE45", "reasoning up to </think>, content in <response>: ERNIE 4.5"),
    ("gemma4", "think:GEMMA4", "reasoning on the channel `thought`: Gemma 4"),
    ("glm45", "think:GLM45", "<think>, also between calls: GLM 4.5 to 4.7"),
    ("glm47", "think:GLM45", "<think>, also between calls: GLM 4.7"),
    ("granite", "think:GRANITE", "`Here is my thought process:`: Granite 3.2"),
    (
        "granite_thinking_parser",
        "think:ON_BY_DEFAULT",
        "reasoning up to </think>, unless switched off: Granite 4.2",
    ),
    ("hf", "think:HF", "what the checkpoint's own `response_template` describes"),
    ("holo2", "think:ON_BY_DEFAULT", "reasoning up to </think>, unless switched off: Holo2"),
    ("hunyuan_a13b", "think:HUNYUAN_A13B", "<think>, content in <answer>: Hunyuan A13B"),
    ("hy_v3", "think:HY_V3", "reasoning if `reasoning_effort` enables it: Hy3"),
    (
        "hy_v4",
        "think:HY_V4",
        "<think> or <think:opensource> unless `reasoning_effort` is `no_think`: Hy4",
    ),
    ("identity", "think:IDENTITY", "everything is content"),
    ("inkling", "channels:INKLING_FORMAT", "reasoning messages: Inkling"),
    ("k2_horizon", "think:K2_HORIZON", "<ifm|think>, by effort: K2 Horizon"),
    ("kimi_k2", "think:KIMI_K2", "reasoning up to </think> or the first call: Kimi K2"),
    ("kimi_k3", "channels:KIMI_K3_FORMAT", "the channel `think`: Kimi K3"),
    ("ling3", "think:GLM45", "<think>, also between calls: Ling 3"),
    ("mimo", "think:QWEN3", "reasoning up to </think> or a call, unless switched off: MiMo V2"),
    (
        "minicpm5",
        "think:MINICPM5",
        "reasoning up to </think> or the first call, unless switched off: MiniCPM 5",
    ),
    ("minicpmv", "think:MINICPMV", "reasoning up to </think>, unless switched off: MiniCPM-V"),
    ("minimax_m2", "think:MINIMAX_M2", "reasoning up to </think>, also between calls: MiniMax M2"),
    (
        "minimax_m2_append_think",
        "think:MINIMAX_M2_APPEND",
        "everything is content, after the prompt's start tag: MiniMax M2",
    ),
    ("minimax_m3", "think:MINIMAX_M3", "<mm:think>, also between calls: MiniMax M3"),
    ("mistral", "think:MISTRAL", "[THINK]: Magistral"),
    ("muse", "channels:MUSE_FORMAT", "messages to itself: Muse Glimmer"),
    ("muse_glimmer", "channels:MUSE_FORMAT", "messages to itself: Muse Glimmer"),
    ("musespark1x", "channels:MUSE_FORMAT", "messages to itself: Muse Spark"),
    (
        "nemotron_v3",
        "think:ON_BY_DEFAULT",
        "reasoning up to </think>, unless switched off: Nemotron 3",
    ),
    ("olmo3", "think:OLMO3", "reasoning up to </think>, with or without <think>: Olmo 3"),
    ("openai_gptoss", "channels:HARMONY_FORMAT", "the channel `analysis`: gpt-oss"),
    ("plamo3", "think:PLAMO3", "reasoning between PLaMo's tags, unless switched off: PLaMo 3"),
    (
        "poolside_v1",
        "think:POOLSIDE_V1",
        "reasoning up to </think> if `enable_thinking` enables it: Laguna",
    ),
    ("qwen3", "think:QWEN3", "reasoning up to </think> or a call, unless switched off: Qwen 3"),
    ("seed_oss", "think:SEED_OSS", "<seed:think>: Seed OSS"),
    ("step3", "think:STEP3", "reasoning up to </think>, with or without <think>: Step 3"),
    ("step3p5", "think:STEP3P5", "reasoning up to </think> or a call: Step 3.5"),
    ("step5", "think:DEEPSEEK_R1", "reasoning up to </think>, with or without <think>: Step 5"),
    (
        "think",
        "think:THINK",
        "optional reasoning between <think> and </think>, unless switched off",
    ),
)
"""(name, module:format, summary)."""
PREFERRED = {"deepseek_r1", "glm45", "think"}
"""Preferred names of formats with several."""

EXAMPLE_REQUESTS = [({REASONING_BOUNDS: ReasoningBounds(ends=("</think>",))}, "there", "there")]
"""Example requests of the conformance suite."""


@hookimpl
def engine_reasoning_parsers() -> list[Entry]:
    return [
        Entry(
            name,
            f"builtin_plugins.output_parsers.reasoning.{target}",
            summary,
            priority=int(name in PREFERRED),
        )
        for name, target, summary in FORMATS
    ]


@hookimpl
def engine_admission_extensions() -> list[Any]:
    # lazy: start-up stays quick
    from builtin_plugins.output_parsers.reasoning.admission import ReasoningAdmission

    return [ReasoningAdmission()]
