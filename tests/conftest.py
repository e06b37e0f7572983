"""What holds for every test: logging is as it was before, and threads that have nothing to do
sleep.

The files that take longest begin first. Any test may use the demo model; its answers can be right
or wrong.
"""

from __future__ import annotations

import gc
import logging
import os
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from core.logs import OURS
from tests import forking

if TYPE_CHECKING:
    from core import LLM

TESTS = Path(__file__).parent
DEMO = TESTS.parent / "builtin_plugins" / "model_sources" / "demo" / "model"
LOGGERS = {name: logging.getLogger(name) for name in ("", *OURS)}
LEVELS = {name: logger.level for name, logger in LOGGERS.items()}

LONGEST = (
    "core/plugin/test_conformance.py",
    "builtin_plugins/models/test_engine_parity.py",
    "builtin_plugins/executors/test_rank_parity.py",
    "system/docs/test_docs.py",
    "core/plugin/test_examples.py",
    "system/attacks/test_corpus.py",
    "builtin_plugins/executors/test_mp_executor.py",
    "system/hostile_files/test_hostile_files.py",
    "builtin_plugins/platforms/test_gpu_platform.py",
    "system/proofs/test_api_death.py",
    "builtin_plugins/models/test_architectures.py",
    "builtin_plugins/kv_connectors/test_kv_faults.py",
    "builtin_plugins/output_parsers/runtime/test_output_cases.py",
    "system/serving/test_served_engine.py",
    "builtin_plugins/features/structured_outputs/test_mask_budgets.py",
    "builtin_plugins/attention_backends/test_attention_backends.py",
    "builtin_plugins/servers/test_http_limits.py",
    "builtin_plugins/clients/test_engine_supervision.py",
    "builtin_plugins/commands/test_plan_command.py",
    "builtin_plugins/output_parsers/tools/test_malformed_calls.py",
    "builtin_plugins/commands/test_doctor.py",
    "builtin_plugins/features/structured_outputs/test_constrained_outputs.py",
    "system/proofs/test_resumed_streams.py",
    "builtin_plugins/routes/test_two_keys.py",
    "builtin_plugins/executors/test_pipeline_overlap.py",
    "system/proofs/test_microkernel.py",
    "kernels/triton/test_triton_attention.py",
    "kernels/triton/test_triton_quantized.py",
    "builtin_plugins/platforms/test_cuda_graph_families.py",
    "system/proofs/test_features_together.py",
)
"""A worker takes whole files in this order, then all others: so that none has minutes to do when
the rest has ended.
"""

# Read when torch is loaded, here and in child processes. Where more programs want the cores than
# there are, threads that wait for each other by spinning make an engine's step twenty times as
# long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Read when Triton's kernels are defined: its interpreter computes them on the CPU.
# `TRITON_INTERPRET=0` is for tests on a GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

forking.install()

# How long an example takes says how busy the machine is.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--new-interpreters",
        action="store_true",
        help="start each engine process as users do, not by fork",
    )


def pytest_configure(config: pytest.Config) -> None:
    forking.SERVER.is_enabled = not config.getoption("new_interpreters")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Spare the garbage collector what stays to the end: some twenty thousand tests, and the
    modules they have imported. Each pass while they are collected would read through them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first."""
    place = {TESTS / name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Sum up what was slowest by file, too, where `--durations=N` asks what was: `LONGEST` is made
    of it.
    """
    most = terminalreporter.config.getoption("durations")
    if most is None:
        return
    taken: Counter[str] = Counter()
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            taken[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section("slowest files")
    for name, seconds in taken.most_common(most or None):
        terminalreporter.line(f"{seconds:.2f}s {name}")


@pytest.fixture(autouse=True)
def logging_is_left_alone() -> Iterator[None]:
    handlers = {name: list(logger.handlers) for name, logger in LOGGERS.items()}
    yield
    for name, logger in LOGGERS.items():
        logger.setLevel(
            LEVELS[name]
        )  # not what it was before the test: an engine for several tests may have set it
        logger.handlers[:] = handlers[name]


@pytest.fixture
def no_garbage_is_collected() -> Iterator[None]:
    """Garbage collection would add time and calls to what is measured."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def new_interpreters() -> Iterator[None]:
    """Each process is a new Python, as users start it."""
    before = forking.SERVER.is_enabled
    forking.SERVER.is_enabled = False
    yield
    forking.SERVER.is_enabled = before


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The demo model's files."""
    return DEMO


@pytest.fixture(scope="session")
def demo_llm() -> Iterator[LLM]:
    """The demo model, for tests of what an answer means; in float32 what holds by a nat holds on
    every machine.
    """
    from core import LLM

    with LLM(str(DEMO), dtype="float32", max_num_seqs=64, num_threads=1) as llm:
        yield llm
