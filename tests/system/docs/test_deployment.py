"""The files of `examples/deployment` fit the engine: metrics, flags, paths and times are those it
has.
"""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from builtin_plugins.commands.config.reference_page import reference_page
from builtin_plugins.metric_sinks.prometheus.catalogue import METRICS
from builtin_plugins.routes.probes.routes import ProbeRoutes
from core.config.fields import FieldTable
from core.plugin import load_plan, make_plan
from tests.system.docs.pages import ROOT

FOLDER = ROOT / "examples" / "deployment"
SERIES = {
    "engine_" + spec.name + suffix
    for spec in METRICS
    for suffix in {
        "counter": ("_total",),
        "gauge": ("",),
        "histogram": ("_bucket", "_sum", "_count"),
    }[spec.type]
}
LABELS = {"le", "model_name", "engine"} | {label for spec in METRICS for label in spec.labels}


def manifest(kind: str) -> Any:
    found = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    return next(each for each in found if each["kind"] == kind)


def container() -> Any:
    return manifest("Deployment")["spec"]["template"]["spec"]["containers"][0]


def queries() -> list[str]:
    board = json.loads((FOLDER / "grafana/dashboards/engine.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    found = queries()
    assert len(found) > 20
    for query in found:
        named = set(re.findall(r"engine_\w+", query))
        assert named, query
        assert named <= SERIES, query
        for labels in re.findall(r"by \((.*?)\)", query):
            assert {label.strip() for label in labels.split(",")} <= LABELS, query


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = json.loads((FOLDER / "grafana/dashboards/engine.json").read_text())["panels"]
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y)
        for p in places
        for x in range(p["x"], p["x"] + p["w"])
        for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.y*ml")), ids=lambda path: path.stem)
def test_yaml_can_be_read(path: Path) -> None:
    assert all(isinstance(each, dict) for each in yaml.safe_load_all(path.read_text()))


def test_flags_are_those_of_the_engine() -> None:
    table = FieldTable(load_plan(make_plan()).options())
    known = set(re.findall(r"`(--[\w-]+)`", reference_page(table)))
    used = {
        flag
        for name in ("Dockerfile", "engine.service", "kubernetes.yaml", "compose.yaml")
        for line in (FOLDER / name).read_text().splitlines()
        if re.search(r"engine serve|^ENTRYPOINT|command:|- --", line) and not line.startswith("#")
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]+", line)
    }
    assert {"--shutdown-timeout", "--log-format"} <= used <= known


def test_arguments_of_a_container_keep_the_host() -> None:
    image = (FOLDER / "Dockerfile").read_text()
    entry = re.search(r"^ENTRYPOINT (.+)$", image, re.MULTILINE)
    assert entry is not None
    flags = ["--host", "0.0.0.0", "--port", "8000"]
    assert json.loads(entry[1]) == ["engine", "serve", *flags]
    assert not re.search("^CMD", image, re.MULTILINE)


def test_probes_request_paths_that_need_no_key() -> None:
    paths = {}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        target = container()[probe]["httpGet"]
        assert target["port"] == "http"
        assert target["path"] in ProbeRoutes.public_paths
        paths[probe] = target["path"]
    assert paths["startupProbe"] == paths["livenessProbe"] == "/livez"
    assert paths["readinessProbe"] == "/readyz"


def test_stop_timeouts_exceed_the_drain_time() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read(FOLDER / "engine.service")
    service = unit["Service"]
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) > drains_for(service["ExecStart"])
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > drains_for(" ".join(container()["args"]))
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["engine"]
    assert int(compose["stop_grace_period"].removesuffix("s")) > drains_for(
        " ".join(compose["command"])
    )


def drains_for(arguments: str) -> int:
    found = re.search(r"--shutdown-timeout[= ](\d+)", arguments)
    assert found is not None
    return int(found[1])


def test_files_that_name_each_other_are_there() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    mounted = [
        volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", ())
    ]
    assert all((FOLDER / name).exists() for name in mounted if name.startswith("."))
    build = services["engine"]["build"]
    assert (FOLDER / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()


def test_the_image_has_the_torch_that_is_tested() -> None:
    pinned = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert f'"torch=={pinned[1]}+cpu"' in (FOLDER / "Dockerfile").read_text()
