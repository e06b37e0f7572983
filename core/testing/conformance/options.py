"""What every option of a plugin must keep."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from core.config.build import config_from_kwargs
from core.errors import ConfigError

if TYPE_CHECKING:
    from core.testing.conformance import Subject


def check_names_are_flags(subject: Subject) -> None:
    """`--` and the name with dashes is the flag."""
    for option in subject.target.given():
        good = re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", option.name)
        assert good, (
            f"option {option.name!r}: use lower-case letters, digits and single underscores."
        )


def check_says_what_it_is_for(subject: Subject) -> None:
    """`--help` and the reference show one sentence."""
    for option in subject.target.given():
        good = option.refuse or (option.help.strip() and "\n" not in option.help)
        assert good, (
            f"option {option.name}: help is {option.help!r}; say in one line what it is for."
        )


def check_default_is_of_its_type(subject: Subject) -> None:
    """An explicit default value equals an unset option."""
    known = subject.target.registry.options()
    for option in subject.target.given():
        if option.default is None or option.refuse:
            continue
        try:
            found = config_from_kwargs({option.name: option.default}, known).options[option.name]
        except ConfigError as error:
            raise AssertionError(
                f"option {option.name}: its default {option.default!r} is refused: {error}"
            ) from error
        assert found == option.default, (
            f"option {option.name}: the default {option.default!r} is read as {found!r}."
        )


def check_examples_are_options(subject: Subject) -> None:
    """`EXAMPLE_OPTIONS` names options of this plugin."""
    own = {option.name for option in subject.target.given()}
    foreign = sorted(set(subject.target.examples.get("EXAMPLE_OPTIONS", ())) - own)
    assert not foreign, (
        f"EXAMPLE_OPTIONS names {foreign}, which are no options of {subject.entry.name!r}."
    )
