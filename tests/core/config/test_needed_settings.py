"""An option that has no effect without another setting is refused by name without it."""

from __future__ import annotations

from typing import Any

import pytest

from core.config.build import assemble, config_from_kwargs, layer_from_keywords
from core.config.fields import Field, FieldTable, Option
from core.errors import ConfigError
from core.plugin import load_plan, make_plan

TABLE = FieldTable(load_plan(make_plan([], None)).options())
DEPENDENT = [found for found in TABLE.by_name.values() if found.needs]
VALUES = {
    "lora_dtype": "float32",
    "max_lora_rank": 8,
    "node_timeout": 60.0,
    "quantization_group": 64,
    "kv_offloading_backend": "native",
    "collect_detailed_traces": ["all"],
}


def value_of(found: Field) -> Any:
    """Return a value that is not the default."""
    if found.name in VALUES:
        return VALUES[found.name]
    if found.type.items:
        return ["/one"]
    return {bool: True, int: 7, float: 0.5, str: "/one"}[found.type.scalars[-1]]


def read(**keywords: Any) -> None:
    assemble(TABLE, [layer_from_keywords(TABLE, keywords)])


def with_needs(need: str) -> dict[str, Any]:
    """Return a needed setting, and what it needs itself."""
    name, _, value = need.partition("=")
    needed = TABLE.by_name[name]
    assert not needed.refuse
    more = with_needs(needed.needs[0]) if needed.needs else {}
    return {name: value.rstrip("*") or value_of(needed), **more}


@pytest.mark.parametrize("found", DEPENDENT, ids=lambda found: found.name)
def test_option_without_what_it_needs_is_refused_by_name(found: Field) -> None:
    with pytest.raises(ConfigError, match=rf"^{found.flag}: got .* has no effect without --"):
        read(**{found.name: value_of(found)})
    read(**{found.name: found.default})


@pytest.mark.parametrize(
    ("found", "need"),
    [(found, need) for found in DEPENDENT for need in found.needs],
    ids=lambda each: getattr(each, "name", each),
)
def test_option_with_what_it_needs_is_accepted(found: Field, need: str) -> None:
    read(**{found.name: value_of(found), **with_needs(need)})


def test_switch_that_is_off_does_not_count_as_set() -> None:
    with pytest.raises(ConfigError, match=r"^--max-loras: got 4"):
        read(max_loras=4, enable_lora=False)


def test_refusal_names_where_the_value_is_set() -> None:
    options = [("web", Option("depth", int, 0, "", needs=("mode=deep", "force")))]
    with pytest.raises(ConfigError) as caught:
        config_from_kwargs({"depth": 3}, options)
    assert str(caught.value) == (
        "--depth: got 3; it has no effect without --mode=deep or --force. Add that, or remove "
        "--depth. (--depth is set by keyword depth)"
    )
