"""Quantization configs: sizes, widths, expressions and methods that do not fit the weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.system.hostile_files.hostile_file import HostileFile, Write, edit_json, text

KIND: Final = "quantization config"
STARS: Final = "(a+)+$"
HUGE: Final = 2**63
MISFIT: Final = "missing|unexpected|quantization|stored"


def config(method: Any, **stated: Any) -> Write:
    """Return a writer of a quantization config."""

    def write(folder: Path) -> None:
        edit_json(folder, "config.json", quantization_config={"quant_method": method, **stated})

    return write


gptq = partial(config, "gptq", desc_act=False, sym=True)
awq = partial(config, "awq", zero_point=True, version="gemm")
fp8 = partial(config, "fp8", activation_scheme="dynamic")


def compressed(**scheme: Any) -> Write:
    """Return a writer of a compressed-tensors config with one group."""
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, **scheme}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return config("compressed-tensors", format="pack-quantized", config_groups=groups)


def nested(depth: int) -> Any:
    """Return lists in lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


WRITERS: Final[dict[str, tuple[Write, str | None]]] = {
    "gptq bits 3.5": (gptq(bits=3.5, group_size=32), "bits"),
    "gptq bits 0": (gptq(bits=0, group_size=32), "bits"),
    "gptq bits 2^63": (gptq(bits=HUGE, group_size=32), "bits"),
    "gptq bits a text": (gptq(bits="4", group_size=32), "bits"),
    "gptq bits missing": (gptq(group_size=32), "bits"),
    "gptq group size 0": (gptq(bits=4, group_size=0), "group_size"),
    "gptq group size negative": (gptq(bits=4, group_size=-7), "group_size"),
    "gptq group size 2^63": (gptq(bits=4, group_size=HUGE), None),
    "gptq group size a float": (gptq(bits=4, group_size=1.5), "group_size"),
    "gptq weights that are plain": (gptq(bits=4, group_size=32), None),
    "gptq dynamic expressions": (
        gptq(bits=4, group_size=32, dynamic={f"-:{STARS}": {}}),
        None,
    ),
    "gptq dynamic a list": (gptq(bits=4, group_size=32, dynamic=[1]), "dynamic"),
    "awq bits 3.5": (awq(bits=3.5, group_size=32), "bits"),
    "awq group size 0": (awq(bits=4, group_size=0), "group_size"),
    "awq version unknown": (awq(bits=4, group_size=32, version="evil"), "version"),
    "awq skipped modules a number": (
        awq(bits=4, group_size=32, modules_to_not_convert=5),
        "modules_to_not_convert",
    ),
    "awq weights that are plain": (awq(bits=4, group_size=32), None),
    "fp8 block sizes of 0": (fp8(weight_block_size=[0, 0]), "weight_block_size"),
    "fp8 block sizes of 2^63": (fp8(weight_block_size=[HUGE, HUGE]), None),
    "fp8 block sizes of three": (fp8(weight_block_size=[1, 2, 3]), "weight_block_size"),
    "fp8 scheme unknown": (fp8(activation_scheme="evil"), "activation_scheme"),
    "fp8 ignored layers of expressions": (fp8(ignored_layers=[f"re:{STARS}"]), None),
    "compressed bits 7": (compressed(num_bits=7), None),
    "compressed bits a list": (compressed(num_bits=[4]), "num_bits|bits"),
    "compressed group size 0": (compressed(group_size=0), "group_size"),
    "compressed group size negative": (compressed(group_size=-3), "group_size"),
    "compressed type unknown": (compressed(type="evil"), "type|evil"),
    "compressed strategy unknown": (compressed(strategy="evil"), "strategy|evil"),
    "compressed groups a list": (
        config("compressed-tensors", format="pack-quantized", config_groups=[1]),
        "config_groups",
    ),
    "compressed format unknown": (
        config("compressed-tensors", format="evil", config_groups={}),
        None,
    ),
    "compressed ignore expressions": (
        config(
            "compressed-tensors",
            format="pack-quantized",
            config_groups={"g": {"targets": [f"re:{STARS}"], "weights": {"num_bits": 4}}},
            ignore=[f"re:{STARS}"] * 100,
        ),
        None,
    ),
    "compressed 10,000 groups": (
        config(
            "compressed-tensors",
            format="pack-quantized",
            config_groups={f"g{n}": {"targets": ["x"], "weights": {}} for n in range(10_000)},
        ),
        None,
    ),
    "bitsandbytes of both widths": (
        config("bitsandbytes", load_in_4bit=True, load_in_8bit=True),
        "load_in|" + MISFIT,
    ),
    "bitsandbytes block sizes": (
        config("bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="evil"),
        "quant_type|" + MISFIT,
    ),
    "hqq group size 0": (
        config("hqq", quant_config={"weight_quant_params": {"nbits": 4, "group_size": 0}}),
        "group_size|hqq|nbits|" + MISFIT,
    ),
    "torchao of code": (config("torchao", quant_type={"default": "os.system"}), "torchao|quant"),
    "torchao expression": (
        config("torchao", quant_type={"default": {"_type": "ModuleFqnToConfig", "_data": STARS}}),
        "torchao|quant",
    ),
    "quark nested": (config("quark", global_quant_config={"weight": nested(30)}), "quark|weight"),
    "modelopt algorithm unknown": (config("modelopt", quant_algo="evil"), "quant_algo|evil"),
    "modelopt exclusions a text": (
        config("modelopt", quant_algo="FP8", exclude_modules="*" * 1000),
        "exclude|" + MISFIT,
    ),
    "modelopt exclusions of stars": (
        config("modelopt", quant_algo="FP8", exclude_modules=["*a" * 100 + "b"] * 100),
        None,
    ),
    "mxfp4 on a dense model": (config("mxfp4"), None),
    "fp_quant width unknown": (config("fp_quant", forward_dtype="evil"), "fp_quant|forward_dtype"),
    "auto-round bits 9": (
        config("auto-round", bits=9, group_size=32, sym=True),
        "bits",
    ),
    "auto-round expressions": (
        config("auto-round", bits=4, group_size=32, sym=True, extra_config={STARS: {"bits": 8}}),
        None,
    ),
    "method unknown": (config("evil"), "evil"),
    "method of a megabyte": (config("e" * (1 << 20)), "quant"),
    "method a list": (config(["gptq"]), "quant_method"),
    "config a text": (
        lambda folder: edit_json(folder, "config.json", quantization_config="gptq"),
        "quant_method",
    ),
    "side file of a list": (text("quantize_config.json", "[]"), "no JSON object"),
    "side file nested": (text("quant_config.json", "[" * 900 + "]" * 900), "nested|no JSON"),
    "side file of another method": (text("hf_quant_config.json", '{"quantization": {}}'), "quant"),
}
CORPUS: Final = [
    HostileFile(KIND, name, write, refusal) for name, (write, refusal) in WRITERS.items()
]
