"""Headless Chromium, driven over a pipe by its DevTools protocol: real mouse and key events.

https://chromedevtools.github.io/devtools-protocol/
"""

import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe"),
    # Nothing can be reached: a page that asks for anything fails.
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--password-store=basic"),
)
TIMEOUT_SECONDS = 60
KEY_CODES = {
    **{"Enter": 13, "Escape": 27, " ": 32, "PageUp": 33, "PageDown": 34, "End": 35, "Home": 36},
    **{"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9},
}


def find_chromium() -> str | None:
    """The program, or None where it is not installed."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def _high(descriptor: int) -> int:
    """The same under a number that Chromium's own two cannot meet."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


class Browser:
    """One page in one browser.

    Args:
        program: Chromium.
        profile: An empty folder for it to write to.
    """

    def __init__(self, program: str, profile: Path) -> None:
        to_read, self._out = map(_high, os.pipe())
        self._in, to_write = map(_high, os.pipe())
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        command = [
            *("bash", "-c", f'exec 3<&{to_read} 4>&{to_write}; exec "$0" "$@"', program),
            *(*FLAGS, f"--user-data-dir={profile}", "about:blank"),
        ]
        self._process = subprocess.Popen(
            command,
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._numbers = itertools.count(1)
        self._received = b""
        self.events: list[dict[str, Any]] = []
        pages = self.send("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def send(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """Gives a command and waits for the answer; events on the way are kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def call(self, method: str, **parameters: Any) -> Any:
        """A command for the page."""
        return self.send(method, self.session, **parameters)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + TIMEOUT_SECONDS
        while b"\0" not in self._received:
            if not select.select([self._in], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError("Chromium has ended")
            self._received += part
        line, _, self._received = self._received.partition(b"\0")
        return json.loads(line)

    def open(self, file: Path) -> None:
        """Loads a local page."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": 1200, "height": 800, "deviceScaleFactor": 1, "mobile": False},
        )
        self.call("Page.navigate", url=file.as_uri())
        end = time.monotonic() + TIMEOUT_SECONDS
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            assert time.monotonic() < end
            self.events.append(self._next())

    def value(self, script: str) -> Any:
        """What an expression of JavaScript gives in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def point(self, selector: str, *, click: bool = False) -> None:
        """Moves the mouse onto an element, and clicks it."""
        x, y = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'nearest'}); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        at = {"x": x, "y": y}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def press(self, *keys: str) -> None:
        """Presses keys by their names, one after the other."""
        for key in keys:
            event: dict[str, Any] = {"key": key, "code": key}
            event["windowsVirtualKeyCode"] = KEY_CODES[key]
            text = {"Enter": "\r", " ": " "}.get(key)
            self.call(
                "Input.dispatchKeyEvent",
                **{"type": "keyDown" if text else "rawKeyDown", **event},
                **({"text": text} if text else {}),
            )
            self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def complaints(self) -> list[Any]:
        """Errors of scripts, of the security policy and of the network, and requests made."""
        self.value("0")  # what the page has said by now has been received
        found: list[Any] = []
        for event in self.events:
            parameters = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(parameters["exceptionDetails"])
            elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                found.append(parameters["entry"])
            elif event["method"] == "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if not url.startswith("file:"):
                    found.append(url)
        return found

    def close(self) -> None:
        """Ends the browser."""
        with contextlib.suppress(RuntimeError, TimeoutError, OSError):
            self.send("Browser.close")
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)


@contextlib.contextmanager
def started(program: str, profile: Path) -> Iterator[Browser]:
    """A browser that ends with the block."""
    browser = Browser(program, profile)
    try:
        yield browser
    finally:
        browser.close()
