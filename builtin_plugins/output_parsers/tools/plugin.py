"""Tool call parsers, one entry per vLLM name."""

from __future__ import annotations

from core.api import Entry, hookimpl

FORMATS = (
    ("apertus", "json_calls:APERTUS", "a list of {name: arguments} between tags: Apertus"),
    (
        "cohere_command3",
        "channels:COHERE_FORMAT",
        "a list of JSON between action tokens: Command A",
    ),
    (
        "cohere_command4",
        "channels:COHERE_FORMAT",
        "a list of JSON between action tokens: Command A+",
    ),
    (
        "deepseek_v3",
        "tagged_families:DEEPSEEK_V3",
        "a name and a block of JSON between special tokens: DeepSeek V3, R1",
    ),
    (
        "deepseek_v31",
        "tagged_families:DEEPSEEK_V31",
        "a name and JSON between special tokens: DeepSeek V3.1",
    ),
    ("deepseek_v32", "tagged_families:DEEPSEEK_V32", "DSML invokes: DeepSeek V3.2"),
    ("deepseek_v4", "tagged_families:DEEPSEEK_V4", "DSML invokes: DeepSeek V4"),
    ("deepseek_v41", "tagged_families:DEEPSEEK_V41", "DSML invokes: DeepSeek V4.1"),
    ("dots", "tagged_families:DOTS", "<invoke> in <dots_function_call>: dots"),
    ("ernie45", "json_calls:ERNIE45", "<tool_call>{json}</tool_call>: ERNIE 4.5"),
    (
        "functiongemma",
        "pythonic:FUNCTIONGEMMA",
        "call:name{argument:value} between tags: FunctionGemma",
    ),
    ("gemma4", "pythonic:GEMMA4", "call:name{argument:value} between tags: Gemma 4"),
    ("gigachat3", "json_calls:GIGACHAT3", "JSON after a function call's header: GigaChat 3"),
    ("gigachat35", "tagged_families:GIGACHAT35", "GCML invokes, as DSML: GigaChat 3.5"),
    ("glm45", "tagged_families:GLM45", "<arg_key> and <arg_value> in <tool_call>: GLM 4.5, 4.6"),
    ("glm47", "tagged_families:GLM45", "<arg_key> and <arg_value> in <tool_call>: GLM 4.7"),
    ("granite", "json_calls:GRANITE", "a list of JSON after a tag: Granite 3"),
    (
        "granite-20b-fc",
        "json_calls:GRANITE_20B_FC",
        "JSON after <function_call>: Granite 20B function calling",
    ),
    ("granite4", "json_calls:GRANITE4", "<tool_call>{json}</tool_call>: Granite 4"),
    (
        "hermes",
        "json_calls:HERMES",
        "<tool_call>{json}</tool_call>: Hermes 2 Pro and 3, Qwen 2.5 and 3",
    ),
    ("hf", "hf:HF", "what the checkpoint's own `response_template` describes"),
    ("hunyuan_a13b", "json_calls:HUNYUAN_A13B", "a list of JSON in <tool_calls>: Hunyuan A13B"),
    ("hy_v3", "tagged_families:HY_V3", "<arg_key> and <arg_value> in <tool_calls>: Hy3"),
    (
        "hy_v4",
        "tagged_families:HY_V4",
        "<arg_key> and <arg_value> in <tool_calls>, or <tool_calls:opensource>: Hy4",
    ),
    ("inkling", "channels:INKLING_FORMAT", "JSON in a message of its own: Inkling"),
    ("internlm", "json_calls:INTERNLM", "JSON between action tokens: InternLM 2.5"),
    ("jamba", "json_calls:JAMBA", "a list of JSON in <tool_calls>: Jamba 1.5"),
    ("k2_horizon", "tagged_families:K2_HORIZON", "<ifm|arg_key> and <ifm|arg_value>: K2 Horizon"),
    (
        "kimi_k2",
        "tagged_families:KIMI_K2",
        "functions.name:index and JSON between special tokens: Kimi K2",
    ),
    ("kimi_k3", "channels:KIMI_K3_FORMAT", "calls and arguments in XTML: Kimi K3"),
    ("lfm2", "pythonic:LFM2", "[f(a=1)] between tags: LFM2"),
    ("ling3", "tagged_families:GLM45", "<arg_key> and <arg_value> in <tool_call>: Ling 3"),
    ("llama3_json", "json_calls:LLAMA_JSON", "bare JSON: Llama 3.1 to 3.3"),
    ("llama4_json", "json_calls:LLAMA_JSON", "bare JSON: Llama 4"),
    ("llama4_pythonic", "pythonic:PYTHONIC", "[f(a=1), g(b=2)]: Llama 4"),
    (
        "longcat",
        "json_calls:LONGCAT",
        "<longcat_tool_call>{json}</longcat_tool_call>: LongCat Flash",
    ),
    ("mimo", "tagged_families:MIMO", "<function=name><parameter=name>, values verbatim: MiMo V2"),
    ("minicpm5", "tagged_families:MINICPM5", "<function name><param name>: MiniCPM 5"),
    ("minimax", "json_calls:MINIMAX", "lines of JSON in <tool_calls>: MiniMax M1"),
    ("minimax_m2", "tagged_families:MINIMAX_M2", "<invoke> in <minimax:tool_call>: MiniMax M2"),
    ("minimax_m3", "nested:MINIMAX_M3", "elements in elements: MiniMax M3"),
    (
        "mistral",
        "json_calls:MISTRAL",
        "[TOOL_CALLS], a list of JSON or name[ARGS]{json}: Mistral, both tokenizer generations",
    ),
    ("muse", "channels:MUSE_FORMAT", "<atem:invoke> in messages to tools: Muse Glimmer"),
    ("muse_glimmer", "channels:MUSE_FORMAT", "<atem:invoke> in messages to tools: Muse Glimmer"),
    ("musespark1x", "channels:MUSE_FORMAT", "<atem:invoke> in messages to tools: Muse Spark"),
    ("olmo3", "pythonic:OLMO3", "f(a=1) by line in <function_calls>: Olmo 3"),
    ("openai", "channels:HARMONY_FORMAT", "messages to functions.name: gpt-oss"),
    ("phi4_mini_json", "json_calls:PHI4_MINI", "functools[json]: Phi-4 mini"),
    ("plamo3", "tagged_families:PLAMO3", "a name and JSON between tags: PLaMo 3"),
    (
        "poolside_v1",
        "tagged_families:GLM45",
        "<arg_key> and <arg_value> in <tool_call>: Poolside's Laguna",
    ),
    ("pythonic", "pythonic:PYTHONIC", "[f(a=1), g(b=2)]: Llama 3.2, ToolACE"),
    ("qwen3_coder", "tagged_families:QWEN3_CODER", "<function=name><parameter=name>: Qwen3 Coder"),
    ("qwen3_json", "json_calls:HERMES", "<tool_call>{json}</tool_call>: Qwen 3"),
    (
        "qwen3_xml",
        "tagged_families:QWEN3_CODER",
        "<function=name><parameter=name>: Qwen3 Coder, 3.5",
    ),
    (
        "seed_oss",
        "tagged_families:SEED_OSS",
        "<function=name><parameter=name> in <seed:tool_call>: Seed OSS",
    ),
    ("step3", "tagged_families:STEP3", "<steptml:invoke> between special tokens: Step 3"),
    ("step3p5", "tagged_families:QWEN3_CODER", "<function=name><parameter=name>: Step 3.5"),
    ("step5", "tagged_families:QWEN3_CODER", "<function=name><parameter=name>: Step 5"),
    ("xlam", "json_calls:XLAM", "a list of JSON, bare, in a code block or after a tag: xLAM"),
)
"""(name, module:format, summary)."""
PREFERRED = {"glm45", "hermes", "llama3_json", "llama4_pythonic", "qwen3_coder"}
"""Preferred names of formats with several."""


@hookimpl
def engine_tool_parsers() -> list[Entry]:
    return [
        Entry(
            name,
            f"builtin_plugins.output_parsers.tools.{target}",
            summary,
            priority=int(name in PREFERRED),
        )
        for name, target, summary in FORMATS
    ]
