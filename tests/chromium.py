"""A real Chromium without a screen, told what to do by the DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from waiting import until

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--remote-debugging-pipe",
)


class Chromium:
    """One browser with one page; its profile is new and goes with it."""

    def __init__(self) -> None:
        assert PROGRAM is not None
        self._profile = tempfile.TemporaryDirectory(prefix="gt-", ignore_cleanup_errors=True)
        hears, self._tell = os.pipe()
        self._hear, tells = os.pipe()
        # It listens on descriptor 3 and answers on 4, which have to be these very numbers.
        command = 'exec "$0" "$@" 3<&$HEARS 4>&$TELLS'
        self._process = subprocess.Popen(
            ["bash", "-c", command, PROGRAM, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            env={**os.environ, "HEARS": str(hears), "TELLS": str(tells)},
            pass_fds=(hears, tells),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(hears)
        os.close(tells)
        self._heard = b""
        self._number = 0
        self.said: list[Any] = []
        """What the page's console and its rules of content had to say."""
        (target,) = until(lambda: self._pages())
        self._session = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self._call("Browser.close")
        os.close(self._tell)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._hear)
        self._profile.cleanup()

    def call(self, method: str, **params: Any) -> Any:
        """One command to the page; what it answers."""
        return self._call(method, self._session, **params)

    def evaluate(self, expression: str) -> Any:
        """What this JavaScript is worth in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def open(self, url: str, *, width: int = 1200, height: int = 1000, scheme: str = "light") -> None:
        """Show this, in a window of this size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)

    def picture(self, file: Path) -> None:
        """Write what the whole page looks like, as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def _pages(self) -> list[Any]:
        return [one for one in self._call("Target.getTargets")["targetInfos"] if one["type"] == "page"]

    def _call(self, method: str, session: str | None = None, /, **params: Any) -> Any:
        self._number += 1
        sent: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            sent["sessionId"] = session
        os.write(self._tell, json.dumps(sent).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            if message.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                self.said.append(message["params"])

    def _next(self) -> Any:
        while b"\0" not in self._heard:
            data = os.read(self._hear, 1 << 16)
            if not data:
                raise OSError("the browser has ended")
            self._heard += data
        message, _, self._heard = self._heard.partition(b"\0")
        return json.loads(message)
