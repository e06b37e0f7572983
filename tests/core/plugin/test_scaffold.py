"""`engine plugins new`: writes a complete package with passing tests for every kind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import core
from builtin_plugins.commands.plugins.scaffold import (
    DISTRIBUTION,
    TARGETS,
    TEMPLATE,
    version_bounds,
    write_package,
)
from core.cli.main import main
from core.errors import ConfigError
from core.plugin import KINDS


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_every_kind_and_extension_point_has_a_template() -> None:
    assert {folder.name for folder in (TEMPLATE / "kinds").iterdir()} == set(TARGETS)
    assert set(TARGETS) > set(KINDS)


def test_package_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "engine-first-come"
    assert (
        main(["plugins", "new", "first_come", "--kind", "scheduling_policies", "-o", str(folder)])
        == 0
    )
    assert files(folder) == {
        ".github/workflows/test.yml",
        "LICENSE",
        "README.md",
        "engine_first_come/__init__.py",
        "engine_first_come/plugin.py",
        "engine_first_come/policy.py",
        "pyproject.toml",
        "tests/test_first_come.py",
    }
    assert 'name = "engine-first-come"' in (folder / "pyproject.toml").read_text()
    assert 'first_come = "engine_first_come.plugin"' in (folder / "pyproject.toml").read_text()
    assert "class FirstCome:" in (folder / "engine_first_come/policy.py").read_text()
    assert f"-m pip install -e '{folder}[test]' && " in capsys.readouterr().out


def test_package_depends_on_the_published_name(tmp_path: Path) -> None:
    write_package("first_come", "scheduling_policies", tmp_path / "package")
    written = tomllib.loads((tmp_path / "package" / "pyproject.toml").read_text())
    bounds = version_bounds(core.__version__)
    assert written["project"]["dependencies"] == []
    assert written["project"]["optional-dependencies"] == {
        "engine": [f"{DISTRIBUTION}{bounds}"],
        "test": ["pytest>=8"],
    }
    assert written["tool"]["engine"]["requires"] == f"core{bounds}"


def test_version_bounds_follow_semver() -> None:
    assert [version_bounds(version) for version in ("0.1.0", "0.9.3", "2.3")] == [
        ">=0.1,<0.2",
        ">=0.9,<0.10",
        ">=2.3,<3",
    ]


def test_printed_next_steps_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "with space"
    assert (
        main(["plugins", "new", "first_come", "--kind", "scheduling_policies", "-o", str(folder)])
        == 0
    )
    install, tests, check = (
        capsys.readouterr().out.splitlines()[-1].removeprefix("Next: ").split(" && ")
    )
    # Offline: all requirements of the package are installed with the engine.
    offline = {
        **os.environ,
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    done = subprocess.run(
        f"{install} --dry-run", shell=True, env=offline, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Would install engine-first-come" in done.stdout
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        tests, shell=True, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    done = subprocess.run(
        f"{check}.plugin".replace("first_come", "engine_first_come"),
        shell=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0


@pytest.mark.parametrize("kind", TARGETS)
def test_no_template_placeholder_is_left(tmp_path: Path, kind: str) -> None:
    for file in write_package("some_name", kind, tmp_path / "package"):
        text = f"{file.relative_to(tmp_path)} {file.read_text()}"
        assert "acme" not in text.lower()
        assert not re.search("KIND|PUBLISHED|API_VERSION|VERSION_BOUNDS", text)


@pytest.mark.slow
def test_generated_package_tests_pass(tmp_path: Path) -> None:
    folders = [tmp_path / f"engine-{kind}" for kind in TARGETS]
    for kind, folder in zip(TARGETS, folders, strict=True):
        write_package(f"my_{kind}", kind, folder)
    folders.append(tmp_path / "engine-seeing")
    write_package("my_seeing", "models", folders[-1], tower=True)
    path = os.pathsep.join(map(str, folders))
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *map(str, folders),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_model_with_a_tower_has_an_input_processor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "package"
    new = ["plugins", "new", "seer", "--tower", "-o", str(folder), "--kind"]
    assert main([*new, "tokenizers"]) == 2
    assert main([*new, "models", "--from", "LlamaForCausalLM"]) == 2
    assert capsys.readouterr().err.count("--tower: expected with --kind models") == 2
    assert main([*new, "models", "--architecture", "SeerForVision"]) == 0
    own = files(folder / "engine_seer")
    assert own == {"__init__.py", "model.py", "plugin.py", "processor.py", "tower.py"}
    texts = [(folder / "engine_seer" / name).read_text() for name in own]
    assert not any("acme" in text.lower() for text in texts)
    assert (folder / "engine_seer" / "plugin.py").read_text().count('Entry("SeerForVision"') == 2


@pytest.mark.parametrize("name", ["Acme", "1st", "two-words", "a__b", ""])
def test_invalid_plugin_name_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="expected lower-case letters"):
        write_package(name, "models", tmp_path / "package")


def test_builtin_plugin_name_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a name that no builtin plugin has"):
        write_package("speculators", "speculators", tmp_path / "package")


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(ConfigError, match="expected an empty or new folder"):
        write_package("acme", "models", tmp_path)
    assert files(tmp_path) == {"precious.txt"}


def test_unknown_kind_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "new", "acme", "--kind", "model"]) == 2
    error = capsys.readouterr().err
    assert "--kind: got 'model'" in error
    assert "did you mean 'models'?" in error


def test_architecture_flag_names_the_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "package"
    arguments = [
        "plugins",
        "new",
        "nanochat",
        "--kind",
        "models",
        "--architecture",
        "NanoChatForCausalLM",
    ]
    assert main([*arguments, "-o", str(folder)]) == 0
    assert (
        'Entry("NanoChatForCausalLM", "engine_nanochat.model:spec"'
        in (folder / "engine_nanochat/plugin.py").read_text()
    )
    assert (
        main(
            [
                "plugins",
                "new",
                "x",
                "--kind",
                "tokenizers",
                "--architecture",
                "X",
                "-o",
                str(tmp_path / "x"),
            ]
        )
        == 2
    )
    assert "with --kind models" in capsys.readouterr().err


def test_from_copies_a_builtin_architecture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "package"
    arguments = [
        "plugins",
        "new",
        "acme",
        "--kind",
        "models",
        "--from",
        "InternLM3ForCausalLM",
        "-o",
        str(folder),
    ]
    assert main(arguments) == 2  # transformers has no such class
    assert "expected a decoder that transformers also has" in capsys.readouterr().err
    assert not folder.exists()
    assert (
        main(
            ["SeedOssForCausalLM" if word == "InternLM3ForCausalLM" else word for word in arguments]
        )
        == 0
    )
    model = (folder / "engine_acme" / "model.py").read_text()
    assert 'ORACLE = "SeedOssForCausalLM"' in model
    assert model.index("def equal_layers(") < model.index("def seed_oss(")
    assert "builtin_plugins" not in model
    assert "def helium" not in model
    assert (
        '"AcmeForCausalLM", "engine_acme.model:seed_oss"'
        in (folder / "engine_acme" / "plugin.py").read_text()
    )


def test_uncopyable_architecture_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = ["plugins", "new", "acme", "-o", str(tmp_path / "package"), "--kind"]
    assert main([*new, "models", "--from", "LamaForCausalLM"]) == 2
    assert "did you mean 'LlamaForCausalLM'?" in capsys.readouterr().err
    assert main([*new, "tokenizers", "--from", "LlamaForCausalLM"]) == 2
    assert "with --kind models" in capsys.readouterr().err
