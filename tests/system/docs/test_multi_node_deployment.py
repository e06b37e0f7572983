"""The files of `examples/deployment/ray`: fields of their schemas, flags of the engine, and the
commands of the Slurm script.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from builtin_plugins.routes.probes.routes import ProbeRoutes
from core.cli.flags import FlagParser, add_flags, parse_flags
from core.config.build import assemble
from core.config.fields import FieldTable
from core.plugin import load_plan, make_plan
from scripts.check_deployments import documents, read_schemas
from scripts.check_deployments import faults as check_faults
from tests.system.docs.pages import ROOT

FOLDER: Final = ROOT / "examples" / "deployment" / "ray"
PLUGIN: Final = ROOT / "plugins" / "engine-ray"
SERVER: Final = re.compile(r"engine serve (.*)", re.DOTALL)

PROBE: Final = {
    "httpGet": {"path": str, "port": (str, int)},
    "periodSeconds": int,
    "timeoutSeconds": int,
    "failureThreshold": int,
}
CONTAINER: Final = {
    "name": str,
    "image": str,
    "command": [str],
    "args": [str],
    "env": [{"name": str, "value": str, "valueFrom": {"secretKeyRef": {"name": str, "key": str}}}],
    "ports": [{"name": str, "containerPort": int}],
    "startupProbe": PROBE,
    "livenessProbe": PROBE,
    "readinessProbe": PROBE,
    "resources": {
        "requests": {"cpu": str, "memory": str},
        "limits": {"cpu": str, "memory": str},
    },
    "volumeMounts": [{"name": str, "mountPath": str}],
}
POD: Final = {
    "metadata": {"labels": dict},
    "spec": {
        "enableServiceLinks": bool,
        "terminationGracePeriodSeconds": int,
        "containers": [CONTAINER],
        "volumes": [{"name": str, "emptyDir": {"medium": str, "sizeLimit": str}}],
    },
}
SCHEMAS: Final[Mapping[tuple[str, str], Any]] = {
    ("v1", "Service"): {
        "selector": dict,
        "ports": [{"name": str, "port": int, "targetPort": (str, int)}],
    },
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): {
        "replicas": int,
        "leaderWorkerTemplate": {
            "size": int,
            "restartPolicy": {"None", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart"},
            "leaderTemplate": POD,
            "workerTemplate": POD,
        },
    },
    ("ray.io/v1", "RayService"): {
        "serveConfigV2": str,
        "rayClusterConfig": {
            "rayVersion": str,
            "enableInTreeAutoscaling": bool,
            "headGroupSpec": {"rayStartParams": dict, "template": POD},
            "workerGroupSpecs": [
                {
                    "groupName": str,
                    "replicas": int,
                    "minReplicas": int,
                    "maxReplicas": int,
                    "rayStartParams": dict,
                    "template": POD,
                }
            ],
        },
    },
}
"""Fields of `spec` by API version and kind, from the definitions of LWS 0.7 and KubeRay 1.4: those
that the files may use. A dict has fields, a list has items, a set has values.
"""


def faults(value: Any, schema: Any, path: str) -> Iterator[str]:
    """Yield what a value has that its schema has not."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            yield f"{path}: {value!r}"
            return
        for key, item in value.items():
            if key in schema:
                yield from faults(item, schema[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(schema, list):
        for index, item in enumerate(value):
            yield from faults(item, schema[0], f"{path}[{index}]")
    elif isinstance(schema, set):
        if value not in schema:
            yield f"{path}: {value!r}"
    elif not isinstance(value, schema):
        yield f"{path}: {value!r}"


def manifests(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def group() -> Any:
    return manifests("leader_worker_set.yaml")[0]["spec"]["leaderWorkerTemplate"]


def container(template: Any) -> Any:
    (found,) = template["spec"]["containers"]
    return found


def server_commands() -> dict[str, list[str]]:
    """Return the arguments of `engine serve` in each file."""
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    script = (FOLDER / "slurm.sh").read_text().replace("\\\n", " ")
    texts = {
        "compose.yaml": compose["head"]["command"][-1],
        "leader_worker_set.yaml": container(group()["leaderTemplate"])["command"][-1],
        "slurm.sh": next(line for line in script.splitlines() if "engine serve" in line),
    }
    found = {}
    for name, text in texts.items():
        match = SERVER.search(text)
        assert match is not None, name
        found[name] = shlex.split(match[1].rstrip(" &"))
    return found


@pytest.mark.parametrize("name", ["leader_worker_set.yaml", "ray_service.yaml"])
def test_manifests_have_fields_of_their_kinds(name: str) -> None:
    for found in manifests(name):
        assert set(found) == {"apiVersion", "kind", "metadata", "spec"}
        assert set(found["metadata"]) == {"name"}
        schema = SCHEMAS[found["apiVersion"], found["kind"]]
        assert list(faults(found["spec"], schema, found["kind"])) == []


def test_schema_names_what_does_not_belong() -> None:
    spec = {"size": "2", "restartPolicy": "Never", "leader": {}}
    schema = SCHEMAS["leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"]["leaderWorkerTemplate"]
    assert list(faults(spec, schema, "a")) == [
        "a.size: '2'",
        "a.restartPolicy: 'Never'",
        "a.leader",
    ]


CRD: Final = """
kind: CustomResourceDefinition
spec:
  group: a.io
  names: {kind: Thing}
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        type: object
        properties:
          apiVersion: {type: string}
          kind: {type: string}
          metadata: {type: object}
          spec:
            type: object
            properties:
              size: {type: integer}
              labels: {type: object, additionalProperties: {type: string}}
              free: {type: object, properties: {}, x-kubernetes-preserve-unknown-fields: true}
"""


def test_published_schemas_refuse_unknown_fields_and_other_types(tmp_path: Path) -> None:
    (tmp_path / "crd.yaml").write_text(CRD)
    schema = read_schemas([tmp_path / "crd.yaml"])["a.io/v1", "Thing"]
    document = {"apiVersion": "a.io/v1", "kind": "Thing", "metadata": {"name": "a"}}
    spec = {"size": 2, "labels": {"any": "x"}, "free": {"any": 1}}
    assert check_faults(schema, document | {"spec": spec}) == []
    assert len(check_faults(schema, document | {"spec": spec | {"sizes": 2}})) == 1
    assert len(check_faults(schema, document | {"spec": spec | {"size": "2"}})) == 1


def test_published_schema_of_compose_is_found_by_its_lack_of_a_kind(tmp_path: Path) -> None:
    path = tmp_path / "compose-spec.json"
    path.write_text('{"properties": {"services": {"type": "object"}}, "required": ["name"]}')
    (schema,) = read_schemas([path]).values()
    assert len(check_faults(schema, {"services": {}})) == 1


def test_check_reads_every_document_of_the_examples() -> None:
    found = {(path.name, kind[1]) for path, kind, _ in documents(FOLDER.parent)}
    assert {
        ("compose.yaml", "Compose"),
        ("leader_worker_set.yaml", "LeaderWorkerSet"),
        ("ray_service.yaml", "RayService"),
    } <= found


@pytest.mark.parametrize("name", ["compose.yaml", "leader_worker_set.yaml", "slurm.sh"])
def test_server_commands_are_read_by_the_engine_with_the_plugin(name: str) -> None:
    registry = load_plan(make_plan(["+" + str(PLUGIN / "engine_ray" / "plugin.py")]))
    table = FieldTable(registry.options())
    parser = FlagParser(prog="engine serve", add_help=False)
    parser.add_argument("model", nargs="?")
    add_flags(parser, table)
    arguments = [re.sub(r"\$SLURM_\w+", "4", each) for each in server_commands()[name]]
    config, _ = assemble(table, [parse_flags(parser, table, arguments)[1]])
    assert config.parallel.distributed_executor_backend == "ray"
    assert config.options["ray_placement_strategy"] == "STRICT_SPREAD"
    reserved = None if name == "compose.yaml" else {"CPU": 4}
    assert config.options["ray_resources"] == reserved
    assert config.device.num_threads == (reserved or {}).get("CPU")


def test_ranks_are_as_many_as_nodes() -> None:
    commands = server_commands()
    sizes = {
        name: arguments[arguments.index("--tensor-parallel-size") + 1]
        for name, arguments in commands.items()
    }
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    assert sizes == {
        "compose.yaml": str(len(services)),
        "leader_worker_set.yaml": str(group()["size"]),
        "slurm.sh": "$SLURM_NNODES",
    }


def test_nodes_reserve_the_cores_that_ray_has_there() -> None:
    for template in (group()["leaderTemplate"], group()["workerTemplate"]):
        found = container(template)
        cores = re.search(r"--num-cpus=(\d+)", found["command"][-1])
        assert cores is not None
        assert found["resources"]["limits"]["cpu"] == cores[1]
    arguments = server_commands()["leader_worker_set.yaml"]
    assert arguments[arguments.index("--ray-resources.CPU") + 1] == cores[1]


def test_probes_and_stop_timeouts_fit_the_server() -> None:
    leader = container(group()["leaderTemplate"])
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert leader[name]["httpGet"]["path"] in ProbeRoutes.public_paths
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["head"]
    stops = {
        "compose.yaml": int(compose["stop_grace_period"].removesuffix("s")),
        "leader_worker_set.yaml": group()["leaderTemplate"]["spec"][
            "terminationGracePeriodSeconds"
        ],
        "slurm.sh": int(re.findall(r"TERM@(\d+)", (FOLDER / "slurm.sh").read_text())[0]),
    }
    for name, arguments in server_commands().items():
        assert int(arguments[arguments.index("--shutdown-timeout") + 1]) < stops[name], name


def test_serve_application_is_the_example_and_fits_its_pods() -> None:
    (service,) = manifests("ray_service.yaml")
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    assert set(application) == {"name", "import_path", "route_prefix", "args"}
    module, _, function = application["import_path"].partition(":")
    assert f"def {function}(" in (PLUGIN / "examples" / f"{module}.py").read_text()
    cluster = service["spec"]["rayClusterConfig"]
    (workers,) = cluster["workerGroupSpecs"]
    deployment = application["args"]["deployment"]
    assert deployment["autoscaling_config"]["max_replicas"] == workers["maxReplicas"]
    cores = str(deployment["ray_actor_options"]["num_cpus"])
    assert container(workers["template"])["resources"]["limits"]["cpu"] == cores
    image = (FOLDER / "Dockerfile").read_text()
    pin = f"ray[serve]=={cluster['rayVersion']}"
    assert f'"{pin}"' in image
    assert pin in (ROOT / "requirements-ray.txt").read_text().splitlines()  # tests run with it


def test_files_that_the_image_needs_are_there() -> None:
    image = (FOLDER / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (\S+) (\S+)$", image, re.MULTILINE)
    (folder,) = {target for source, target in copied if (ROOT / source).is_dir()}
    path = re.search(r"^ENV PYTHONPATH=(\S+)$", image, re.MULTILINE)
    assert path is not None
    assert (PLUGIN / Path(path[1]).relative_to(folder) / "ray_serve.py").is_file()
    build = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["head"]["build"]
    assert (FOLDER / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()


def test_slurm_script_starts_the_head_then_the_other_nodes_then_the_server(tmp_path: Path) -> None:
    record = tmp_path / "record"
    stub = f'#!/bin/sh\necho "$(basename "$0") $*" >> {record}\n'
    (tmp_path / "srun").write_text(stub)
    (tmp_path / "scontrol").write_text("#!/bin/sh\nprintf 'n1\\nn2\\nn3\\n'\n")
    for name in ("srun", "scontrol"):
        (tmp_path / name).chmod(0o755)
    subprocess.run(
        ["bash", FOLDER / "slurm.sh"],
        env={
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "SLURM_JOB_NODELIST": "n[1-3]",
            "SLURM_NNODES": "3",
            "SLURM_CPUS_PER_TASK": "16",
        },
        check=True,
        timeout=60,
    )
    lines = sorted(record.read_text().splitlines())
    head = "srun --overlap --nodes=1 --ntasks=1 --nodelist=n1"
    assert [line for line in lines if "ray start" in line] == [
        f"{head} ray start --head --port=6379 --num-cpus=16 --block",
        "srun --overlap --nodes=2 --ntasks=2 --exclude=n1 ray start --address=n1:6379 "
        "--num-cpus=16 --block",
    ]
    assert f"{head} ray status --address=n1:6379" in lines
    (server,) = [line for line in lines if "engine serve" in line]
    assert server.startswith(f"{head} engine serve Qwen/Qwen3-0.6B ")
    assert "--tensor-parallel-size 3 " in server
    assert "--ray-address n1:6379 " in server
