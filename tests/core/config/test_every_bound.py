"""Every flag has bounds and a type: each value is valid or rejected by the flag's name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.cli.flags import FlagParser, add_flags, parse_flags
from core.config.build import assemble, config_from_kwargs, layer_from_file, layer_from_keywords
from core.config.fields import Field, FieldTable, Option
from core.config.files import read_config_file
from core.config.values import Range
from core.errors import ConfigError
from core.plugin import load_plan, make_plan

OPTIONS = list(load_plan(make_plan([], None)).options())
TABLE = FieldTable(OPTIONS)
FIELDS = [found for found in TABLE.by_name.values() if not found.refuse]
PARSER = FlagParser(prog="engine")
add_flags(PARSER, TABLE)
NUMERIC = [found for found in FIELDS if {int, float} & {*found.type.scalars}]
NASTY: tuple[Any, ...] = (
    *("", " ", "\n", "\0", "a\0b", "None", "nope", "x" * 100_000),
    *("1", "-1", "1e400", "nan", "-inf", "9" * 39, "9" * 5000),
    *("1k", "1.5K", "{}", "{", "[1]", "true", "٣", "\ud800"),
    *('{"a": ' + "9" * 5000 + "}", '{"a":' * 100_000),
    *(True, False, 0, 1, -1, -2, 3, 2**31, 2**63, -(2**63) - 1, 10**18, 10**40, 10**400),
    *(0.0, -0.0, 0.5, -0.5, 1.5, 1e308, math.nan, math.inf, -math.inf),
    *([], [""], ["a", ""], ["a\0"], [None], [[1]], [math.nan], list(range(10))),
    *((), ("a",), {}, {"a": 1}, {1: 2}),
    *(object(), b"x", {1}, Path("x"), int, len, np.zeros(2), np.float32(2), np.int64(3)),
)
TEXTS = [value for value in NASTY if isinstance(value, str) and "\0" not in value]


def scalars(value: Any) -> Iterator[Any]:
    """Yield a value, or the items of a list."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from scalars(item)
    else:
        yield value


def check_sane(found: Field, value: Any) -> None:
    """Fail unless an accepted value is valid for the field."""
    if value is None or value == found.default:
        return
    within = found.type.within or (found.type.items.within if found.type.items else None)
    for item in scalars(value):
        if isinstance(item, str):
            blank = found.type.items is not None and found.type.items.blank
            assert item in found.type.choices or (
                (item if blank else item.strip()) and "\0" not in item
            )
        elif isinstance(item, (int, float)) and not isinstance(item, bool):
            assert item in found.type.choices or (
                within is not None and within.low <= item <= within.high
            )
        else:
            assert isinstance(item, (bool, dict)), f"{item!r} is not a type of flags"


def value_of(found: Field, config: Any) -> Any:
    section = getattr(config, found.section)
    return section[found.name] if found.section == "options" else getattr(section, found.name)


def check_names(found: Field, error: ConfigError, value: Any = "") -> None:
    """Fail unless a message names the field, as a flag or as a keyword or key."""
    named = re.search(rf"\b{found.name}\b|{re.escape(found.flag)}\b", str(error))
    assert named, f"{value!r:.60}: {error}"


@pytest.mark.parametrize("found", NUMERIC, ids=lambda found: found.name)
def test_every_number_has_its_own_bounds_and_a_default_within(found: Field) -> None:
    within = found.type.within
    assert within is not None, f"{found.flag}: Annotated[..., Range(low, high)]"
    assert within.low <= within.high < math.inf
    assert found.default is None or not found.type.fault(found.default)


@pytest.mark.parametrize("found", FIELDS, ids=lambda found: found.name)
def test_any_keyword_value_is_valid_or_rejected_by_name(found: Field) -> None:
    for value in NASTY:
        try:
            config, _ = assemble(TABLE, [layer_from_keywords(TABLE, {found.name: value})])
        except ConfigError as error:
            check_names(found, error, value)
        else:
            check_sane(found, value_of(found, config))


@pytest.mark.parametrize("found", FIELDS, ids=lambda found: found.name)
def test_any_flag_value_is_valid_or_rejected_by_name(found: Field) -> None:
    for text in TEXTS:
        try:
            _, layer = parse_flags(PARSER, TABLE, [f"{found.flag}={text}"])
            config, _ = assemble(TABLE, [layer])
        except ConfigError as error:
            check_names(found, error, text)
        else:
            check_sane(found, value_of(found, config))


def test_refused_flag_accepts_no_other_value() -> None:
    for found in (found for found in TABLE.by_name.values() if found.refuse):
        for value in NASTY:
            try:
                config, _ = assemble(TABLE, [layer_from_keywords(TABLE, {found.name: value})])
            except ConfigError as error:
                check_names(found, error, value)
            else:
                assert found.name not in config.options


@pytest.mark.parametrize("found", NUMERIC, ids=lambda found: found.name)
def test_file_values_have_the_same_bounds(found: Field, tmp_path: Path) -> None:
    within = found.type.within
    assert within is not None
    path = tmp_path / "engine.toml"
    for value in (within.low - 1, within.high * 2 + 1, math.nan, math.inf):
        path.write_text(f"{found.name} = {value}\n")
        with pytest.raises(ConfigError, match="line 1") as refused:
            assemble(TABLE, [layer_from_file(TABLE, read_config_file(str(path)))])
        check_names(found, refused.value)


def test_out_of_bounds_message_names_bound_and_action() -> None:
    with pytest.raises(ConfigError, match=r"^--port 99999 is too large; use up to 65535\."):
        config_from_kwargs({"port": 99999}, OPTIONS)
    with pytest.raises(ConfigError, match=r"^--step-timeout nan is no number\."):
        config_from_kwargs({"step_timeout": math.nan})
    with pytest.raises(
        ConfigError,
        match=r"^--served-model-name is empty, or holds an empty text; give one, or leave it",
    ):
        config_from_kwargs({"served_model_name": ["a", ""]})
    with pytest.raises(ConfigError, match=r"^--download-dir holds a NUL character"):
        config_from_kwargs({"download_dir": "a\0b"})


def test_default_bounds_are_64_bits_and_finite() -> None:
    plain = [
        ("acme", Option("acme_count", int, 1, "")),
        ("acme", Option("acme_share", float, 1.0, "")),
    ]
    for name, value in (("acme_count", 2**63), ("acme_share", math.inf), ("acme_share", math.nan)):
        with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} "):
            config_from_kwargs({name: value}, plain)
    assert config_from_kwargs({"acme_count": -5}, plain).options["acme_count"] == -5


def test_bounds_apply_to_each_item_of_a_list() -> None:
    many = [("acme", Option("acme_ports", list[int], [], ""))]
    with pytest.raises(ConfigError, match="--acme-ports 9223372036854775808 is too large"):
        config_from_kwargs({"acme_ports": [1, 2**63]}, many)
    assert Range(0, 1) == Range(0, 1)
