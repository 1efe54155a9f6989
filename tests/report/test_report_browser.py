"""report.html in a real browser: no error on its console, nothing fetched, and it fits a phone, in the light and dark.

The page is served on loopback inside a frame as wide as a phone; a script around it opens what is folded, measures, and
leaves what it found in its own document, which headless Chromium prints. `--host-resolver-rules` lets nothing out.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from elastic_tpu.report.page import page
from elastic_tpu.report.story import tell
from elastic_tpu.tests.report.test_report import evil

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)")

FRAME = """<!doctype html><title>frame</title>
<body style="margin:0"><iframe id="frame" src="/report.html" style="border:0;width:%dpx;height:800px"></iframe>
<pre id="found"></pre><script>
document.getElementById("frame").addEventListener("load", (event) => {
  const page = event.target.contentDocument, view = event.target.contentWindow;
  page.querySelectorAll("details").forEach((folded) => { folded.open = true; });
  const rgb = (element, name) => view.getComputedStyle(element)[name];
  const shown = (name) => rgb(page.querySelector(name), "display") !== "none";
  document.getElementById("found").textContent = JSON.stringify({
    width: page.documentElement.scrollWidth,
    wide: [...page.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > view.innerWidth + 1)
      .map((e) => e.outerHTML.slice(0, 80)),
    background: rgb(page.body, "backgroundColor"), text: rgb(page.body, "color"),
    curve: rgb(page.querySelector(".chart .serie-1 path"), "stroke"),
    narrow: shown(".chart .narrow"), broad: shown(".chart .wide"),
    hacked: "hacked" in view || "hacked" in window,
  });
});
</script>"""


@dataclass(frozen=True)
class Seen:
    """What the browser found, said on its console, and asked for."""

    found: dict[str, Any]
    console: list[str]
    asked: list[str]


Look = Callable[..., Seen]


@pytest.fixture
def look(tmp_path: Path) -> Iterator[Look]:
    """Opens a page in the browser."""
    bodies: dict[str, str] = {}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = bodies.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def open_page(text: str, width: int = 390, dark: bool = False) -> Seen:
        bodies.update({"/": FRAME % width, "/report.html": text})
        flags = [
            "headless",
            "no-sandbox",
            "disable-gpu",
            "disable-quic",
            "no-first-run",
            "disable-sync",
            "hide-scrollbars",
        ]
        flags += ["disable-background-networking", "disable-component-update", "disable-dev-shm-usage", "dump-dom"]
        flags += [f"user-data-dir={tmp_path / 'browser'}", "enable-logging=stderr", "virtual-time-budget=5000"]
        flags += ["window-size=1400,900", "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        flags += [f"blink-settings=preferredColorScheme={0 if dark else 1}"]
        assert CHROMIUM is not None
        command = [CHROMIUM, *(f"--{flag}" for flag in flags), f"http://127.0.0.1:{server.server_port}/"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        found = re.search(r'<pre id="found">(.+?)</pre>', done.stdout)
        assert found, f"the page was not loaded\n{done.stdout[-500:]}\n{done.stderr[-2000:]}"
        console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
        return Seen(json.loads(html.unescape(found[1])), console, [a for a in asked if a != "/favicon.ico"])

    yield open_page
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_a_phone_and_is_quiet(look: Look, dark: bool) -> None:
    seen = look(page(tell(evil())), dark=dark)
    assert seen.console == []
    assert seen.asked == ["/", "/report.html"]
    assert (seen.found["wide"], seen.found["width"]) == ([], 390)
    assert (seen.found["narrow"], seen.found["broad"]) == (True, False)
    assert not seen.found["hacked"]
    assert (_light(seen.found["background"]) > 0.9) is not dark
    assert abs(_light(seen.found["background"]) - _light(seen.found["text"])) > 0.6
    assert abs(_light(seen.found["background"]) - _light(seen.found["curve"])) > 0.3


def test_it_fits_a_desk(look: Look) -> None:
    seen = look(page(tell(evil())), width=1280)
    assert (seen.found["wide"], seen.console) == ([], [])
    assert (seen.found["narrow"], seen.found["broad"]) == (False, True)


def test_what_does_not_belong_there_would_be_noticed(look: Look) -> None:
    """The test above can fail: a script and a picture that get into the page are refused, and seen."""
    text = page(tell(evil())).replace(
        "</body>", "<script>hacked = 1</script><img src='/x.png'><p style='width:999px'>wide"
    )
    seen = look(text)
    assert len(seen.console) >= 2
    assert not seen.found["hacked"]
    assert seen.asked == ["/", "/report.html"]
    assert seen.found["width"] == 999 + 16


def _light(color: str) -> float:
    """Lightness of `rgb(r, g, b)`, from 0 to 1."""
    return sum(map(int, re.findall(r"\d+", color)[:3])) / (3 * 255)
