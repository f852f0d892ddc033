"""A headless Chromium for tests of pages, driven by the DevTools protocol over two pipes (JSON, each message
ended by a zero byte), as a person would drive it: by labels, buttons and keys.

Source: chromedevtools.github.io/devtools-protocol, `--remote-debugging-pipe`.
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = "chromium-headless-shell"
WAIT_S = 60.0
# how pages are looked at: what a label names, a button or link by its text, within what can be seen
HELPERS = """
const seen = e => e && e.getClientRects().length > 0;
const byText = (kind, text) => [...document.querySelectorAll(kind)].filter(
  e => seen(e) && e.textContent.trim() === text);
const labelled = text => [...document.querySelectorAll("label")].filter(
  e => seen(e) && e.querySelector("span").textContent.trim() === text)
  .map(e => e.querySelector("input,select"));
"""


class Browser:
    """One page. What its console said is in `said`: errors, refusals of the content policy."""

    def __init__(self, process: subprocess.Popen[bytes], reading: int, writing: int) -> None:
        self._process = process
        self._reading, self._writing = reading, writing
        self._buffer = b""
        self._last = 0
        self._session = ""
        self._loads = 0
        self.status = 0
        self.said: list[str] = []

    # the protocol
    def call(self, method: str, **params: Any) -> Any:
        """One command; its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + WAIT_S
        while True:
            answer = self._next(end)
            if answer.get("id") == self._last:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._reading, 1 << 20)
            assert data, f"the browser has ended: {self._process.poll()}"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loads += 1
        elif method == "Network.responseReceived" and params["type"] == "Document":
            self.status = params["response"]["status"]
        elif method == "Log.entryAdded" and params["entry"].get("source") != "network":
            self.said.append(params["entry"]["text"])
        elif method in ("Runtime.exceptionThrown", "Page.javascriptDialogOpening"):
            self.said.append(f"{method}: {params}")

    def attach(self) -> None:
        """Open the page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{part}.enable")

    @contextmanager
    def another_tab(self) -> Iterator[None]:
        """What is done within is done in a tab of its own, of the same browser."""
        before, self._session = self._session, ""
        self.attach()
        try:
            yield
        finally:
            self._session = before

    # what a person sees and does
    def js(self, expression: str) -> Any:
        """The value of an expression in the page; see HELPERS."""
        code = f"(() => {{ {HELPERS}; return {expression}; }})()"
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True)
        assert "exceptionDetails" not in found, (expression, found)
        return found["result"].get("value")

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Ends when the page that is asked for within has been loaded and drawn once: a page takes the focus
        where it wants it (autofocus) when it is first drawn, and a person acts on what can be seen."""
        before, end = self._loads, time.monotonic() + WAIT_S
        yield
        while self._loads == before:
            self._next(end)
        drawn = "new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
        self.call("Runtime.evaluate", expression=drawn, awaitPromise=True)

    def goto(self, url: str) -> int:
        """Open a URL; the status of what came."""
        with self.loading():
            self.call("Page.navigate", url=url)
        return self.status

    @property
    def text(self) -> str:
        """What can be read on the page."""
        return str(self.js("document.body.innerText"))

    @property
    def url(self) -> str:
        """Where it is."""
        return str(self.js("location.href"))

    def _focus(self, element: str) -> None:
        assert self.js(f"(({element}) || 0).focus !== undefined"), f"not there: {element} in {self.text}"
        self.js(f"({element}).focus()")

    def key(self, name: str) -> None:
        """Press a key: Tab, Enter, " "."""
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        text = {"Enter": "\r", " ": " "}.get(name, "")
        common = {"key": name, "code": "Space" if name == " " else name, "windowsVirtualKeyCode": codes[name]}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Type where the focus is."""
        self.call("Input.insertText", text=text)

    def fill(self, label: str, text: str, at: int = 0) -> None:
        """Replace what is in the box beside a label; the `at`-th if several have it."""
        self._focus(f"labelled({json.dumps(label)})[{at}]")
        self.js("document.activeElement.select()")
        if text:
            self.type(text)
        else:
            self.js("document.activeElement.value = ''")

    def choose(self, label: str, option: str) -> None:
        """Choose in a list by the option's text."""
        self._focus(f"labelled({json.dumps(label)})[0]")
        wanted = json.dumps(option)
        assert self.js(
            f"[...document.activeElement.options].some(e => e.text === {wanted} && (e.selected = true))"
        )

    def tick(self, label: str) -> None:
        """Turn a box by the space bar."""
        self._focus(f"labelled({json.dumps(label)})[0]")
        self.key(" ")

    def unfold(self, title: str, at: int = 0) -> None:
        """Show what is folded below a title."""
        self._focus(f'byText("summary", {json.dumps(title)})[{at}]')
        if not self.js("document.activeElement.parentElement.open"):
            self.key("Enter")

    def press(self, text: str, at: int = 0) -> int:
        """Press a button or follow a link by the keyboard; the status of the page that comes."""
        self._focus(f'byText("button,a", {json.dumps(text)})[{at}]')
        with self.loading():
            self.key("Enter")
        return self.status

    def screenshot(self, file: Path, width: int = 1100, height: int = 800) -> None:
        """A picture of the page, as PNG."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        shot = self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a profile; ended with all its processes."""
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as scratch:
        to_it, writing = os.pipe()
        reading, from_it = os.pipe()
        options = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        program = [PROGRAM, *options, "--remote-debugging-pipe", f"--user-data-dir={scratch}"]
        # it wants the pipes as descriptors 3 and 4
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_it} 4>&{from_it}', "browser", *program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(to_it, from_it),
            env={**os.environ, "HOME": scratch},
        )
        os.close(to_it)
        os.close(from_it)
        try:
            browser = Browser(process, reading, writing)
            browser.attach()
            yield browser
            os.write(writing, b'{"id": 0, "method": "Browser.close"}\0')
            process.wait(20)
        finally:
            os.close(writing)
            os.close(reading)
            process.kill()
            process.wait()
