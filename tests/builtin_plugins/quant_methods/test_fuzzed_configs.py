"""Twenty thousand configs with a wrong field: each is read or rejected with a `ModelError`."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest

from builtin_plugins.quant_methods.fp8.method import DeepSpeedFp
from builtin_plugins.quant_methods.modelopt.method import MIXED, ModelOpt
from builtin_plugins.quant_methods.stored.method import StoredMethod
from core.errors import ModelError
from tests.builtin_plugins.quant_methods.test_fuzzed_tensors import PART
from tests.builtin_plugins.quant_methods.writers import activations as rounded
from tests.builtin_plugins.quant_methods.writers.all_formats import cases
from tests.builtin_plugins.quant_methods.writers.float_formats import CASES as FLOATS

NUM_DAMAGES = 20_000
LONGEST = 800
"""Maximum characters of a message: config contents are truncated."""
PREFIX = "model.layers.0.mlp.up_proj"
MORE: dict[str, dict[str, Any]] = {
    "gptq": {
        "dynamic": {"-:a.*": {}, "+:model.layers.0.*": {"bits": 8}},
        "modules_in_block_to_quantize": [["up_proj"]],
    },
    "awq": {"modules_to_not_convert": ["lm_head"]},
    "auto-round": {
        "extra_config": {PREFIX: {"bits": 4}, ".*up.*": {"bits": 4}},
        "block_name_to_quantize": "model",
    },
    "bitsandbytes": {"llm_int8_skip_modules": ["lm_head"]},
    "compressed-tensors": {
        "sparsity_config": {"format": "dense"},
        "transform_config": {"config_groups": {}},
        "kv_cache_scheme": {"type": "float", "num_bits": 8},
        "ignore": ["re:.*lm_head"],
    },
    "fbgemm_fp8": {"modules_to_not_convert": ["a"]},
    "fp8": {"ignored_layers": ["a"]},
    "fp_quant": {"modules_to_not_convert": ["a"]},
    "hqq": {"skip_modules": ["lm_head"]},
    "modelopt": {"exclude_modules": ["a*"], "quantized_layers": {PREFIX: {"quant_algo": "FP8"}}},
    "quark": {
        "export": {"weight_format": "real_quantized"},
        "exclude": ["re:x"],
        "layer_quant_config": {"*up*": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}},
    },
    "torchao": {"modules_to_not_convert": ["lm_head"], "include_input_output_embeddings": True},
}
"""Optional fields."""
DAMAGES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 7, 2**31, 10**30, -(2**63), 1.5, float("nan"), float("inf")),
    *("", "x", "12", "re:(", "re:[", "-:(", "*", "lm_head", "\x00", "x" * 100_000, r"re:(.*)*!"),
    *([], {}, [None], [1], [[]], [{}], [["a"]], {"a": 1}, {"a": None}, {"a": {}}),
    *({"re:(": {}}, {"-:(": {}}, {"(.*)*!": {}}),
    *([1.5, 2], [0, 0], [-1, 128], [128], [10**30, 10**30], ["128", "128"]),
    *("128x128", "1x2x3", "axb"),
)  # fmt: skip


def configs() -> Iterator[tuple[type[StoredMethod], dict[str, Any]]]:
    """Yield one config of each method."""
    stated: list[tuple[type[StoredMethod], dict[str, Any]]] = []

    def record(self: StoredMethod, config: Any, engine: Any = None) -> None:
        stated.append((type(self), config))
        init(self, config, engine)

    init = StoredMethod.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoredMethod, "__init__", record)
        for _, make in (cases() | FLOATS).values():
            make()
        for (_, make_rounding), _, _ in rounded.cases().values():
            make_rounding(None)
    yield from stated
    yield DeepSpeedFp, DeepSpeedFp.example_config
    yield ModelOpt, {"quant_method": "modelopt", "quant_algo": MIXED}


def paths_in(facts: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each item in a config, without the root."""
    if path:
        yield path
    if isinstance(facts, (dict, list)):
        for key in facts if isinstance(facts, dict) else range(len(facts)):
            yield from paths_in(facts[key], (*path, key))


def damaged(facts: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    found = inner = copy.deepcopy(facts)
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return found


def read(method: type[StoredMethod], facts: dict[str, Any]) -> bool:
    """Make the calls of a model's layers; False: the config was rejected."""
    try:
        made = method(facts)
        for prefix in (PREFIX, "model.layers.0.self_attn.k_proj"):
            stored = made.format_of(prefix)
            if stored is not None:
                stored.check(PART)
                for suffix in stored.suffixes:
                    stored.shape(suffix, PART)
        made.head("lm_head")
        made.embedding("model.embed_tokens")
        getattr(made, "kv_dtype", str)(PREFIX)
    except ModelError as error:
        message = str(error)
    else:
        return True
    assert len(message) <= LONGEST
    return False


def test_fuzzed_config_is_read_or_rejected() -> None:
    chance = random.Random(5)
    known = [(method, {**MORE.get(method.name, {}), **facts}) for method, facts in configs()]
    for method, facts in known:
        assert read(method, facts), facts
    refused = 0
    for index in range(NUM_DAMAGES):
        method, facts = known[index % len(known)]
        path = chance.choice(list(paths_in(facts)))
        value = chance.choice(DAMAGES)
        try:
            refused += not read(method, damaged(facts, path, value))
        except Exception as error:
            raise AssertionError(
                f"{method.__name__}, {path}: {value!r:.80}, damage {index}: {error!r}"
            ) from error
    assert refused > NUM_DAMAGES // 3


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        (
            "awq",
            {"modules_to_not_convert": "lm_head"},
            "modules_to_not_convert: got 'lm_head'; expected a list of names",
        ),
        ("gptq", {"dynamic": {"+:a": 3}}, r"dynamic.\+:a: got 3; expected an object"),
        ("gptq", {"dynamic": {"-:(": {}}}, r"got '\('; expected a supported regular expression"),
        ("quark", {"exclude": ["re:["]}, r"got '\['; expected a supported regular expression"),
        (
            "compressed-tensors",
            {"ignore": [None]},
            r"ignore: got \[None\]; expected a list of names",
        ),
        ("hqq", {"quant_config": 4}, "quant_config: got 4; expected an object"),
    ],
)
def test_invalid_field_is_named(method: str, change: dict[str, Any], message: str) -> None:
    made, facts = next((made, facts) for made, facts in configs() if made.name == method)
    with pytest.raises(ModelError, match=f"quantization_config: .*{message}"):
        made({**facts, **change})
