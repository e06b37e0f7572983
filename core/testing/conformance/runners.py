"""What every runner must hold to: it leaves to others what is theirs, models and requests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from core.errors import InvalidRequest
from core.plugin import load_plan, make_plan
from core.testing.fake_model import FakeArchitecture, FakeConfig, fake_source
from core.types.pooling import PoolingInfo

if TYPE_CHECKING:
    from core.contracts.runners import Runner
    from core.testing.conformance import Subject


def check_says_whether_it_generates(subject: Subject) -> None:
    """A prompt of a runner that does may not fill the whole context."""
    found = getattr(subject.target, "generates", None)
    assert isinstance(found, bool), (
        f"{subject.entry.name}: generates is {found!r}; set it to True or False."
    )


def check_leaves_a_model_to_the_runner_that_was_chosen(subject: Subject) -> None:
    """With `--runner` of another name, no other runner takes the model."""
    spec: Any = FakeArchitecture(FakeConfig())
    model = replace(subject.config.model, model="fake:", runner="another")
    config = replace(subject.config, model=model)
    found = _make(subject).adapt_spec(spec, config, fake_source())
    assert found is None, (
        f"{subject.entry.name}: settle took a model under --runner another; return None."
    )


def check_refuses_parameters_that_are_none(subject: Subject) -> None:
    """What a client sends by mistake is refused with the field, before it is queued."""
    wrong: Any = object()
    try:
        _make(subject).read_params(PoolingInfo(tasks=("embed",), size=1), wrong)
    except InvalidRequest:
        return
    raise AssertionError(
        f"{subject.entry.name}: admit took {wrong!r} for parameters; raise InvalidRequest."
    )


def _make(subject: Subject) -> Runner:
    runner: Runner = subject.target(load_plan(make_plan(["none", "runner_generate"])))
    return runner
