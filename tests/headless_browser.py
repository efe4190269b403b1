"""A headless Chromium, spoken to over two pipes in the DevTools protocol; it needs no library."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from select import select
from time import monotonic

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WHY_NOT = "no Chromium on this machine; .ci/run installs Debian's package where it may"
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
_FLAGS += ("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe")


class Tab:
    """One page of the browser; `events` are what it said on its own, in order."""

    def __init__(self, to_browser, from_browser):
        self.to_browser, self.from_browser = to_browser, from_browser
        self.rest, self.number, self.session, self.events = b"", 0, None, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self, limit_s=60.0):
        end = monotonic() + limit_s
        while b"\0" not in self.rest:
            ready, *_ = select([self.from_browser], [], [], max(0.0, end - monotonic()))
            assert ready, "the browser says nothing"
            self.rest += os.read(self.from_browser, 1 << 20)
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def run(self, script):
        """Value of a script, awaited."""
        found = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, page, *, width=1280, height=900, dark=False, touch=False):
        """Load a file and wait until its timelines are drawn."""
        self.events.clear()
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=touch,
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)
        self.ask("Page.navigate", url=page.absolute().as_uri())
        end = monotonic() + 60
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            assert monotonic() < end
            self.events.append(self._next())
        self.run(SETTLED)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, text="\r" if key == "Enter" else "")

    def picture(self, file, **form):
        data = self.ask("Page.captureScreenshot", format="png", **form)["data"]
        file.write_bytes(base64.b64decode(data))

    @property
    def complaints(self):
        """Requests of anything but the page, what the console was told, what failed."""
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith(("data:", "file:")):
                    found.append(url)
            elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                found.append(json.dumps(params)[:500])
        files = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        files = [e for e in files if e["params"]["request"]["url"].startswith("file:")]
        return found + [f"{len(files)} files asked for"] * (len(files) != 1)


SETTLED = """(async () => {
  const root = document.getElementById('timelines');
  for (let i = 0; root && i < 600 && !root.textContent; i++)
    await new Promise(requestAnimationFrame);
  for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
})()"""


CUT = """[...document.querySelectorAll('main *')].filter((one) => {
  if (one.closest('.tip') || !one.getClientRects().length) return false;
  const scrolls = (e) => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
  let holder = one; while (holder && !scrolls(holder)) holder = holder.parentElement;
  const out = one.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
  const hides = getComputedStyle(one).overflowX !== 'visible' && !scrolls(one);
  return (out && !holder) || (hides && one.scrollWidth > one.clientWidth + 1);
}).map((one) => one.outerHTML.slice(0, 120))"""
"""What of the page is neither on the screen nor reached by scrolling."""


@contextmanager
def browser():
    """Start Chromium with a profile of its own and give its first tab; it ends with the block."""
    read_commands, to_browser = os.pipe()
    from_browser, write_answers = os.pipe()
    folder = tempfile.mkdtemp()
    # The browser reads commands from its file 3 and answers on its file 4.
    line = f'exec "$0" "$@" 3<&{read_commands} 4>&{write_answers}'
    process = subprocess.Popen(
        ["bash", "-c", line, PROGRAM, *_FLAGS, f"--user-data-dir={folder}"],
        pass_fds=(read_commands, write_answers),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_commands)
    os.close(write_answers)
    try:
        yield Tab(to_browser, from_browser)
    finally:
        os.close(to_browser)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_browser)
        shutil.rmtree(folder, ignore_errors=True)
