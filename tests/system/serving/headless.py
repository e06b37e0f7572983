"""Headless Chromium, driven over a pipe with Chrome's DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.timeouts import TIMEOUT_S

NAMES: Final = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"),
    *("chrome-headless-shell", "headless_shell", "microsoft-edge"),
)
CACHED: Final = (
    ".cache/ms-playwright/chromium*/chrome-*/*chrome*",
    ".cache/ms-playwright/chromium*/chrome-*/headless_shell",
    ".cache/puppeteer/chrome*/*/chrome-*/*chrome*",
)
"""Browsers of Playwright and Puppeteer, below the home folder."""
FLAGS: Final = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-zygote",
        "--no-first-run",
    ),
    *(
        "--disable-background-networking",
        "--remote-debugging-pipe",
        "--hide-scrollbars",
        "about:blank",
    ),
)
# The browser reads commands at descriptor 3 and answers at 4.
LAUNCH: Final = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)


def find_browser() -> str | None:
    """Return a Chromium of this machine."""
    named = next((path for path in map(shutil.which, NAMES) if path), None)
    cached = (path for pattern in CACHED for path in Path.home().glob(pattern))
    return named or next(
        (str(path) for path in cached if path.is_file() and os.access(path, os.X_OK)), None
    )


class Page:
    """One page of the browser."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._ids = itertools.count(1)
        self._rest = b""
        self._session: dict[str, str] = {}
        self.complaints: list[str] = []
        """Exceptions, and violations of the content security policy."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = {
            "sessionId": self.send("Target.attachToTarget", targetId=target, flatten=True)[
                "sessionId"
            ]
        }
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        """Send a command and return its result."""
        message_id = next(self._ids)
        message = {"id": message_id, "method": method, "params": params, **self._session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == message_id:
                assert "error" not in reply, (method, reply["error"])
                return reply["result"]
            if reply.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(reply["params"]["exceptionDetails"]))
            if (
                reply.get("method") == "Log.entryAdded"
                and reply["params"]["entry"]["source"] == "security"
            ):
                self.complaints.append(reply["params"]["entry"]["text"])

    def _receive(self) -> dict[str, Any]:
        until_s = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._rest:
            readable, _, _ = select.select(
                [self._answers], [], [], max(0.0, until_s - time.monotonic())
            )
            assert readable, "the browser says nothing"
            more = os.read(self._answers, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def open(self, url: str) -> None:
        """Go to an address and wait until its scripts have run."""
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        params = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        reply = self.send("Runtime.evaluate", **params)
        assert "exceptionDetails" not in reply, (expression, reply["exceptionDetails"])
        return reply["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        until_s = time.monotonic() + TIMEOUT_S
        pause = "new Promise(go => setTimeout(() => go(false), 50))"
        while not self.value(f"Boolean({expression}) || {pause}"):
            assert time.monotonic() < until_s, (
                f"never came true: {expression}\n{self.value('document.body.innerText')}"
            )

    def click(self, selector: str) -> None:
        """Click the center of a visible element."""
        script = (
            "(e => {{ e.scrollIntoView({{block: 'nearest'}}); const r = e.getBoundingClientRect(); "
        )
        script += "return [r.x + r.width / 2, r.y + r.height / 2]; }})(document.querySelector({}))"
        x, y = self.value(script.format(json.dumps(selector)))
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def write(self, selector: str, text: str) -> None:
        """Click into a field and replace its text."""
        self.click(selector)
        self.value("document.activeElement.select()")
        if text:
            self.send("Input.insertText", text=text)
        else:
            self.press("Backspace", 8)

    def press(self, key: str, code: int, *, modifiers: int = 0) -> None:
        """Press a key; modifiers: 1 for Alt, 2 for Ctrl, 8 for Shift, or their sum."""
        more: dict[str, Any] = {"text": "\r"} if key == "Enter" else {}
        if modifiers:
            more["modifiers"] = modifiers
        name = f"Key{key.upper()}" if key.isalpha() and len(key) == 1 else key
        self.send(
            "Input.dispatchKeyEvent",
            type="keyDown",
            key=key,
            code=name,
            windowsVirtualKeyCode=code,
            **more,
        )
        self.send(
            "Input.dispatchKeyEvent", type="keyUp", key=key, code=name, windowsVirtualKeyCode=code
        )

    def choose_files(self, selector: str, *paths: Path) -> None:
        """Choose files in a file field."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def forget(self) -> None:
        """Remove what the browser stores for the origin of the page."""
        origin = self.value("location.origin")
        self.send("Storage.clearDataForOrigin", origin=origin, storageTypes="indexeddb")

    def resize(self, width: int, height: int, *, phone: bool = False, scale: float = 1) -> None:
        """Set the screen size of the page."""
        screen = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}
        self.send("Emulation.setDeviceMetricsOverride", **screen)

    def prefer(self, scheme: str) -> None:
        """Prefer a colour scheme: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def picture(self) -> bytes:
        """Return a screenshot as PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])


@contextmanager
def browsing(program: str, folder: Path) -> Iterator[Page]:
    """Run a browser with its profile in a folder."""
    ends = [os.pipe(), os.pipe()]
    # Above 3 and 4, so that making those closes none of them.
    theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (ends[0][0], ends[1][1])]
    command = [
        sys.executable,
        "-c",
        LAUNCH,
        *map(str, theirs),
        program,
        *FLAGS,
        f"--user-data-dir={folder}",
    ]
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(command, pass_fds=theirs, stdout=log, stderr=log)
    for fd in (*theirs, ends[0][0], ends[1][1]):
        os.close(fd)
    try:
        yield Page(ends[0][1], ends[1][0])
    finally:
        process.kill()
        process.wait()
        os.close(ends[0][1])
        os.close(ends[1][0])
