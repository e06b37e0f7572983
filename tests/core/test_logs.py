"""Log lines as text and as JSON."""

from __future__ import annotations

import json
import logging
import warnings
from datetime import UTC, datetime

import pytest

from core.logs import JsonFormatter, setup_logging

log = logging.getLogger("core.somewhere")


@pytest.fixture(autouse=True)
def restore_warnings():
    yield
    logging.captureWarnings(False)


def test_json_line_is_one_object_with_all_fields(capsys):
    setup_logging("info", log_format="json", process="engine")
    try:
        raise ValueError("über\nzwei Zeilen")
    except ValueError:
        log.exception("it %s", "broke\nhere")
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert list(entry) == ["time", "level", "logger", "process", "message", "exception"]
    assert abs((datetime.now(UTC) - datetime.fromisoformat(entry["time"])).total_seconds()) < 60
    assert entry["time"].endswith("+00:00")
    assert (entry["level"], entry["logger"], entry["process"]) == (
        "ERROR",
        "core.somewhere",
        "engine",
    )
    assert entry["message"] == "it broke\nhere"
    assert "ValueError: über" in entry["exception"]


def test_json_line_of_a_request_has_its_id(capsys):
    setup_logging("info", log_format="json")
    log.info("it has ended", extra={"request_id": "cmpl-1"})
    log.info("without a request", extra={"request_id": ""})
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert first["request_id"] == "cmpl-1"
    assert "request_id" not in second


def test_text_with_lone_surrogates_is_logged():
    record = logging.LogRecord("core", logging.ERROR, "file", 1, "lone \udc80", None, None)
    line = JsonFormatter("engine").format(record)
    assert json.loads(line.encode())["message"] == "lone \udc80"


def test_other_libraries_and_warnings_are_json_too(capsys):
    setup_logging("info", log_format="json")
    logging.getLogger("a.library").error("theirs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # garbage of other tests may warn at any time
        warnings.filterwarnings("default", "a warning")
        warnings.warn("a warning", stacklevel=1)
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["message"], first["process"]) == ("theirs", "main")
    assert "a warning" in second["message"]


def test_text_lines_of_a_child_process_have_its_name(capsys):
    setup_logging("info", process="worker 1")
    log.info("ready")
    setup_logging("info")
    log.info("mine")
    child, own = capsys.readouterr().err.splitlines()
    assert child.startswith("INFO ")
    assert child.endswith(" [worker 1] core.somewhere: ready")
    assert "[" not in own


def test_log_format_may_change_after_setup(capsys):
    setup_logging("info")
    setup_logging("info", log_format="json")
    log.info("once")
    assert json.loads(capsys.readouterr().err)["message"] == "once"
