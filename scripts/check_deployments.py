"""Checks the deployment examples against published schemas, which this repository has no copies of.

Custom resources need their CRDs, such as `config/crd/bases/*.yaml` of
github.com/kubernetes-sigs/lws and `helm-chart/kuberay-operator/crds/*.yaml` of
github.com/ray-project/kuberay; Compose files need `schema/compose-spec.json` of
github.com/compose-spec/compose-spec.

Run: python -m scripts.check_deployments FILE...
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import yaml

FOLDER: Final = Path(__file__).parents[1] / "examples" / "deployment"
COMPOSE: Final = ("", "Compose")
"""Kind of Compose files."""
Kind = tuple[str, str]
"""API version and kind."""


def read_schemas(paths: Iterable[Path]) -> dict[Kind, Any]:
    """Return the JSON schemas of CRDs and of the Compose Specification, by kind."""
    schemas: dict[Kind, Any] = {}
    for path in paths:
        found = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if found.get("kind") != "CustomResourceDefinition":
            schemas[COMPOSE] = found
            continue
        spec = found["spec"]
        for version in spec["versions"]:
            schema = _without_unknown_fields(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            schemas[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return schemas


def _without_unknown_fields(schema: Any) -> Any:
    """Return a schema of a CRD that refuses unknown fields, as `kubectl apply` does."""
    if isinstance(schema, list):
        return [_without_unknown_fields(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _without_unknown_fields(each) for name, each in schema.items()}
    if isinstance(found.get("properties"), dict):
        keeps_unknown = found.get("x-kubernetes-preserve-unknown-fields", False)
        found.setdefault("additionalProperties", keeps_unknown)
    return found


def documents(folder: Path) -> Iterator[tuple[Path, Kind, Any]]:
    """Yield the path, kind and content of each document of the examples."""
    for path in sorted(folder.rglob("*.yaml")):
        for found in yaml.safe_load_all(path.read_text()):
            if "services" in found:
                yield path, COMPOSE, found
            elif "kind" in found:
                yield path, (found["apiVersion"], found["kind"]), found


def faults(schema: Any, document: Any) -> list[str]:
    """Return what a document has that its schema does not allow."""
    make = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    return [f"{error.json_path}: {error.message}" for error in make(schema).iter_errors(document)]


def main() -> int:
    """Print a line for each document; return 1 if one has a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="CRD or Compose schema")
    schemas = read_schemas(parser.parse_args().files)
    status = 0
    for path, kind, document in documents(FOLDER):
        name = f"{path.relative_to(FOLDER)} {' '.join(kind).strip()}"
        if kind not in schemas:
            sys.stdout.write(f"{name}: no schema given\n")
            continue
        found = faults(schemas[kind], document)
        sys.stdout.write(f"{name}: {'; '.join(found) or 'valid'}\n")
        status |= bool(found)
    return status


if __name__ == "__main__":
    sys.exit(main())
