"""Compiles the C++ kernels into the wheel. Everything else about the package stands in
pyproject.toml.

The library has the variants of every processor of this machine's architecture, or of the one that
the wheel is for: `--plat-name linux_aarch64` compiles with a cross compiler. Without a compiler the
wheel is a pure one: the engine then builds the library on first use, or goes without.
"""

from __future__ import annotations

import runpy
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

KERNELS = runpy.run_path(str(Path(__file__).parent / "kernels" / "core_kernels" / "build.py"))


class BuildWithKernels(build_py):
    """Adds the library next to the package; an editable install leaves that to `make setup`."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "core_kernels" / KERNELS["LIBRARY_NAME"]
        wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
        platform = getattr(wheel, "plat_name", None) or ""
        for architecture, variants in KERNELS["ARCHITECTURES"].items():
            if architecture != KERNELS["ARCHITECTURE"] and platform.endswith(architecture):
                KERNELS["compile_library"](target, variants, KERNELS["OBJECTS"], architecture)
                return
        try:
            KERNELS["compile_library"](target, KERNELS["VARIANTS"], KERNELS["OBJECTS"])
        except KERNELS["BuildError"] as error:
            self.warn(f"C++ kernels left out of this build: {error}")


class WithLibrary(Distribution):
    """Says that there is machine code, so that the wheel is not called a pure one."""

    def has_ext_modules(self) -> bool:
        return KERNELS["find_compiler"]() is not None


class PlatformWheel(bdist_wheel):
    """A wheel with the library fits one platform, but any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        tag = super().get_tag()
        return tag if self.root_is_pure else ("py3", "none", tag[2])


setup(distclass=WithLibrary, cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel})
