"""Settings of image processors: sizes, numbers, code and files that are none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.system.hostile_files.hostile_file import HostileFile, Write, edit_json, text

KIND: Final = "image processor config"
WAY: Final = "image_processor"
FILES: Final = ("processor_config.json", "preprocessor_config.json")
HUGE: Final = 2**63
CODE: Final = {"AutoProcessor": "evil.Evil", "AutoImageProcessor": "evil.Evil"}


def settings(**changed: Any) -> Write:
    """Return a writer that changes settings of the image processor."""

    def write(folder: Path) -> None:
        for name in FILES:
            path = folder / name
            stated = json.loads(path.read_text()) if path.exists() else {}
            if name == FILES[0]:
                stated["image_processor"] = {**stated.get("image_processor", {}), **changed}
            else:
                stated.update(changed)
            path.write_text(json.dumps(stated))

    return _after(write)


def processor(**changed: Any) -> Write:
    """Return a writer that changes settings of the processor."""
    return _after(lambda folder: edit_json(folder, FILES[0], **changed))


def replaced(file: str, content: str) -> Write:
    """Return a writer of a whole file."""
    return _after(text(file, content))


def _after(change: Callable[[Path], None]) -> Write:
    """Return a writer that makes a good model with images, and changes it."""

    def write(folder: Path) -> None:
        from tests.builtin_plugins.models.vision.checkpoints.llava import llava

        llava(folder)
        change(folder)

    return write


def fifo(folder: Path) -> None:
    """Put a FIFO in place of the settings."""
    (folder / FILES[1]).unlink(missing_ok=True)
    os.mkfifo(folder / FILES[1])


def code(folder: Path) -> None:
    """Name code of the folder, which leaves a file when it runs."""
    (folder / "evil.py").write_text("open('ran', 'w')\nclass Evil: pass\n")
    for name in FILES:
        edit_json(folder, name, auto_map=CODE, processor_class="Evil", image_processor_type="Evil")


WRITERS: Final[dict[str, tuple[Write, str | None]]] = {
    "good": (settings(), None),
    "edge 2^63": (settings(size={"shortest_edge": HUGE}), "size.shortest_edge"),
    "edge 1,000,000": (settings(size={"shortest_edge": 10**6}), "size.shortest_edge"),
    "edge 0": (settings(size={"shortest_edge": 0}), "size.shortest_edge|load"),
    "edge negative": (settings(size={"shortest_edge": -28}), "size.shortest_edge|load"),
    "edge a text": (settings(size={"shortest_edge": "28"}), "size|load"),
    "size a list of lists": (settings(size=[[1]]), "size|load"),
    "crop of 32768 by 32768": (settings(crop_size={"height": 2**15, "width": 2**15}), "crop_size"),
    "crop 0": (settings(crop_size={"height": 0, "width": 28}), "crop_size.height|load"),
    "means NaN": (settings(image_mean=[float("nan")] * 3), "image_mean"),
    "means infinite": (settings(image_mean=[float("inf")] * 3), "image_mean"),
    "means a text": (settings(image_mean="evil"), "image_mean|load|cannot be processed"),
    "means of a million": (settings(image_mean=[0.5] * 10**6), "expected at most|values"),
    "deviations 0": (settings(image_std=[0, 0, 0]), "image_std"),
    "factor 1e308": (settings(rescale_factor=1e308), "rescale_factor"),
    "resample 99": (settings(resample=99), "resample|load|cannot be processed|images"),
    "patch 0": (processor(patch_size=0), "patch_size"),
    "patch 2^63": (processor(patch_size=HUGE), "patch_size"),
    "image token a number": (processor(image_token=7), "image_token|load"),
    "image token empty": (processor(image_token=""), "image_token|load"),
    "processor class unknown": (processor(processor_class="os.system"), "processor_class"),
    "code of its own": (_after(code), "custom code"),
    "nested 100,000 deep": (replaced(FILES[0], "[" * 100_000), "load"),
    "a list": (replaced(FILES[0], "[]"), "load"),
    "a list of settings": (replaced(FILES[1], "[]"), None),
    "empty": (replaced(FILES[0], ""), "load"),
    "2 MiB": (replaced(FILES[0], json.dumps({"a": "x" * 2**21})), "expected at most"),
    "FIFO": (_after(fifo), "no regular file"),
    "chat template file of a list": (replaced("chat_template.json", "[]"), "load"),
    "video settings nested": (replaced("video_preprocessor_config.json", "[" * 100_000), None),
}
CORPUS: Final = [
    HostileFile(KIND, name, write, refusal, WAY) for name, (write, refusal) in WRITERS.items()
]
