"""Logits processors see only their rows, and their errors fail only these rows."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from core.testing.plugins import fake_dist
from core.types import SamplingParams
from tests.core.worker.step_driver import Driver

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
        return [Entry("probe", Probe, "records its calls")]
"""
WITH_PROBE = SamplingParams(temperature=0, extra_args={"probe": 1})
RANDOM_WITH_PROBE = SamplingParams(extra_args={"probe": 1})


def probe(
    folder: Path,
    *,
    invariant: bool = False,
    added: str = "pass",
    removed: str = "pass",
    apply: str = "pass",
) -> str:
    """Write the plugin; return its selector."""
    file = folder / "probe.py"
    file.write_text(
        textwrap.dedent(
            SOURCE.format(invariant=invariant, added=added, removed=removed, apply=apply)
        )
    )
    return str(file)


def seen(driver: Driver) -> list[tuple[list[int], list[int], list[int]]]:
    """Return the plugin's recorded calls."""
    registry = driver.registry
    found = next(r for r in registry.entries("logits_processors") if r.entry.name == "probe")
    calls: list[tuple[list[int], list[int], list[int]]] = registry.load(found).seen
    return calls


def test_processor_sees_only_its_rows(tmp_path: Path) -> None:
    driver = Driver(probe(tmp_path))
    driver.add("a", PROMPT)
    driver.add("b", PROMPT, WITH_PROBE)
    driver.add("c", PROMPT)
    driver.add("d", [*PROMPT, 4], WITH_PROBE)
    driver.step()
    rows = [driver.rows["b"], driver.rows["d"]]
    assert seen(driver) == [(rows, [3, 4], rows)]
    driver.end("d")
    driver.step()
    assert seen(driver)[1:] == [([driver.rows["b"]], [4], [driver.rows["b"]])]
    driver.end("b")
    driver.step()
    assert len(seen(driver)) == 2


def test_argmax_invariant_processor_skips_greedy_rows(
    tmp_path: Path,
) -> None:
    driver = Driver(probe(tmp_path, invariant=True))
    driver.add("greedy", PROMPT, WITH_PROBE)
    driver.add("random", PROMPT, RANDOM_WITH_PROBE)
    driver.step()
    assert [rows for rows, _, _ in seen(driver)] == [[driver.rows["random"]]]


def test_processor_changes_only_its_rows(tmp_path: Path) -> None:
    driver = Driver(probe(tmp_path, apply="logits[:, 33] = 1e6"))
    plain = Driver()
    for each in (driver, plain):
        each.add("a", PROMPT)
    driver.add("b", PROMPT, WITH_PROBE)
    assert driver.generate("a", 3) == plain.generate("a", 3)
    assert driver.tokens["b"][3:] == [33, 33, 33]


@pytest.mark.parametrize("method", ["added", "apply"])
@pytest.mark.parametrize("sampling", [WITH_PROBE, RANDOM_WITH_PROBE], ids=["greedy", "random"])
def test_processor_error_fails_its_rows_and_names_the_plugin(
    tmp_path: Path, method: str, sampling: SamplingParams, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(probe(tmp_path, **{method: "raise RuntimeError('no luck')"}))
    plain = Driver()
    for each in (driver, plain):
        each.add("bystander", PROMPT)
    driver.add("probed", PROMPT, sampling)
    result = driver.step()
    assert list(result.errors) == [driver.rows["probed"]]
    assert (
        result.errors[driver.rows["probed"]]
        == "plugin 'probe' failed in request 'probed'; see the engine log."
    )
    for part in ("logits_processors:probe", "Request: 'probed'", "RuntimeError", "no luck"):
        assert part in caplog.text
    assert result.by_row()[result.rows.index(driver.rows["probed"])] == []
    driver.end("probed")
    plain.step()
    assert driver.generate("bystander", 3) == plain.generate("bystander", 3)


def test_processor_error_names_distribution_and_version(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = SOURCE.format(
        invariant=False, added="pass", removed="pass", apply="raise ValueError('x')"
    )
    with fake_dist("acme-logits", "1.2.3", {"acme": "acme_logits"}, {"acme_logits": source}):
        driver = Driver("acme")
        driver.add("probed", PROMPT, WITH_PROBE)
        text = next(iter(driver.step().errors.values()))
    assert "plugin 'acme' failed" in text
    for part in ("acme-logits", "1.2.3", "logits_processors:probe", "probed", "ValueError"):
        assert part in caplog.text


def test_wrong_logits_shape_fails_the_processors_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(probe(tmp_path, apply="return logits[:, :5]"))
    driver.add("probed", PROMPT, WITH_PROBE)
    driver.add("bystander", PROMPT)
    result = driver.step()
    assert list(result.errors) == [driver.rows["probed"]]
    assert "apply returned (1, 5)" in caplog.text


def test_error_in_removed_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(probe(tmp_path, removed="raise RuntimeError('stuck')"))
    driver.add("probed", PROMPT, WITH_PROBE)
    driver.step()
    driver.end("probed")
    driver.add("next", PROMPT)
    assert driver.step().errors == {}
    assert "stuck" in caplog.text


def test_min_tokens_suppresses_eos_tokens() -> None:
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
