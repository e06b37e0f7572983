"""Logits processors see the rows that want them, and a fault of theirs costs those rows only."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from step_driver import Driver

from core.testing.plugins import fake_dist
from core.types import SamplingParams

PROMPT = [5, 9, 30]
SOURCE = """
    from core.api import Entry, hookimpl

    class Probe:
        params = ()
        argmax_invariant = {invariant}
        seen = []

        def __init__(self, context):
            pass

        def wants(self, sampling):
            return "probe" in (sampling.extra_args or {{}})

        def added(self, row, sampling, token_ids, prompt_len):
            self.args = sampling.extra_args
            {added}

        def removed(self, row):
            {removed}

        def apply(self, logits, rows):
            Probe.seen.append((list(rows.rows), list(rows.lengths), rows.row_index.tolist()))
            {apply}
            return logits

    @hookimpl
    def engine_logits_processors():
        return [Entry("probe", Probe, "looks at what it is called with")]
"""
ASKING = SamplingParams(temperature=0, extra_args={"probe": 1})
ASKING_AT_RANDOM = SamplingParams(extra_args={"probe": 1})


def probe(
    folder: Path,
    *,
    invariant: bool = False,
    added: str = "pass",
    removed: str = "pass",
    apply: str = "pass",
) -> str:
    """Write the plugin and return what selects it."""
    file = folder / "probe.py"
    file.write_text(
        textwrap.dedent(
            SOURCE.format(invariant=invariant, added=added, removed=removed, apply=apply)
        )
    )
    return str(file)


def seen(driver: Driver) -> list[tuple[list[int], list[int], list[int]]]:
    """Return what the plugin was called with."""
    registry = driver.registry
    found = next(r for r in registry.entries("logits_processors") if r.entry.name == "probe")
    calls: list[tuple[list[int], list[int], list[int]]] = registry.load(found).seen
    return calls


def test_only_rows_that_want_a_processor_are_shown_to_it(tmp_path: Path) -> None:
    driver = Driver(probe(tmp_path))
    driver.add("a", PROMPT)
    driver.add("b", PROMPT, ASKING)
    driver.add("c", PROMPT)
    driver.add("d", [*PROMPT, 4], ASKING)
    driver.step()
    rows = [driver.rows["b"], driver.rows["d"]]
    assert seen(driver) == [(rows, [3, 4], rows)]
    driver.end("d")
    driver.step()
    assert seen(driver)[1:] == [([driver.rows["b"]], [4], [driver.rows["b"]])]
    driver.end("b")
    driver.step()
    assert len(seen(driver)) == 2


def test_a_processor_that_cannot_change_the_best_token_is_spared_greedy_rows(
    tmp_path: Path,
) -> None:
    driver = Driver(probe(tmp_path, invariant=True))
    driver.add("greedy", PROMPT, ASKING)
    driver.add("random", PROMPT, ASKING_AT_RANDOM)
    driver.step()
    assert [rows for rows, _, _ in seen(driver)] == [[driver.rows["random"]]]


def test_what_a_processor_does_reaches_its_rows_and_no_others(tmp_path: Path) -> None:
    driver = Driver(probe(tmp_path, apply="logits[:, 33] = 1e6"))
    plain = Driver()
    for each in (driver, plain):
        each.add("a", PROMPT)
    driver.add("b", PROMPT, ASKING)
    assert driver.generate("a", 3) == plain.generate("a", 3)
    assert driver.tokens["b"][3:] == [33, 33, 33]


@pytest.mark.parametrize("place", ["added", "apply"])
@pytest.mark.parametrize("sampling", [ASKING, ASKING_AT_RANDOM], ids=["greedy", "random"])
def test_a_fault_fails_the_rows_it_was_called_for_and_names_whose_it_is(
    tmp_path: Path, place: str, sampling: SamplingParams, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(probe(tmp_path, **{place: "raise RuntimeError('no luck')"}))
    plain = Driver()
    for each in (driver, plain):
        each.add("bystander", PROMPT)
    driver.add("asking", PROMPT, sampling)
    result = driver.step()
    assert list(result.errors) == [driver.rows["asking"]]
    assert (
        result.errors[driver.rows["asking"]]
        == "plugin 'probe' failed in request 'asking'; the engine's log says more."
    )
    for part in ("logits_processors:probe", "Request: 'asking'", "RuntimeError", "no luck"):
        assert part in caplog.text
    assert result.by_row()[result.rows.index(driver.rows["asking"])] == []
    driver.end("asking")
    plain.step()
    assert driver.generate("bystander", 3) == plain.generate("bystander", 3)


def test_a_fault_of_an_installed_plugin_names_distribution_and_version(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = SOURCE.format(
        invariant=False, added="pass", removed="pass", apply="raise ValueError('x')"
    )
    with fake_dist("acme-logits", "1.2.3", {"acme": "acme_logits"}, {"acme_logits": source}):
        driver = Driver("acme")
        driver.add("asking", PROMPT, ASKING)
        text = next(iter(driver.step().errors.values()))
    assert "plugin 'acme' failed" in text
    for part in ("acme-logits", "1.2.3", "logits_processors:probe", "asking", "ValueError"):
        assert part in caplog.text


def test_a_wrong_shape_is_the_processors_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(probe(tmp_path, apply="return logits[:, :5]"))
    driver.add("asking", PROMPT, ASKING)
    driver.add("bystander", PROMPT)
    result = driver.step()
    assert list(result.errors) == [driver.rows["asking"]]
    assert "apply returned (1, 5)" in caplog.text


def test_a_fault_on_leaving_harms_nobody_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(probe(tmp_path, removed="raise RuntimeError('stuck')"))
    driver.add("asking", PROMPT, ASKING)
    driver.step()
    driver.end("asking")
    driver.add("next", PROMPT)
    assert driver.step().errors == {}
    assert "stuck" in caplog.text


def test_minimum_length_keeps_the_models_own_end_tokens_away() -> None:
    free = Driver()
    held = Driver()
    free.add("a", PROMPT)
    end = free.generate("a", 1)[0]
    held.add("a", PROMPT, SamplingParams(temperature=0, min_tokens=2), eos=(end,))
    held.add(
        "ignoring", PROMPT, SamplingParams(temperature=0, min_tokens=2, ignore_eos=True), eos=(end,)
    )
    held.step()
    assert held.tokens["a"][-1] != end
    assert held.tokens["ignoring"][-1] == end
