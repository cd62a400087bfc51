"""Pages in a real browser: opened without a network, looked at by a script of the test's.

A browser is there where `.ci/run` runs; elsewhere such tests are skipped with the reason.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from programs import program

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOOK = """<script>
window.found = {errors: []};
window.addEventListener("error", (event) => window.found.errors.push(String(event.message)));
console.error = (...words) => window.found.errors.push(words.join(" "));
</script>"""
"""Runs before the page's own script."""
LOOKED = """<script>
(() => {
const found = window.found;
%s
parent.document.getElementById("found-" + window.name).textContent = JSON.stringify(found);
})();
</script>"""
"""Runs behind it, and tells the page around it what the test's script has put into `found`."""
FRAME = """
<pre id="found-{number}"></pre>
<iframe name="{number}" srcdoc="{page}" style="width: {width}px; height: 900px; border: 0"></iframe>
"""
"""A window of a browser has a least width, which a frame has not."""


def seen(
    pages: Sequence[str], look: str, directory: Path, width: int, *, dark: bool = False
) -> list[dict[str, Any]]:
    """Open pages in a browser at this width; return what the script found in each."""
    file = directory / "page.html"
    frames = ['<!doctype html>\n<meta name="color-scheme" content="light dark">']
    for number, page in enumerate(pages):
        hooked = page.replace("<head>", f"<head>{HOOK}", 1)
        hooked = hooked.replace("</body>", f"{LOOKED % look}</body>", 1)
        frames.append(FRAME.format(number=number, page=html.escape(hooked), width=width))
    file.write_text("".join(frames), encoding="utf-8")
    command = [
        program(*BROWSERS),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--enable-logging=stderr",
        f"--user-data-dir={directory / 'profile'}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        "--hide-scrollbars",
        "--window-size=1400,1000",
        "--dump-dom",
        file.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert not re.search(r":CONSOLE[:(]", done.stderr), done.stderr
    texts = re.findall(r'<pre id="found-\d+">(.+?)</pre>', done.stdout, re.DOTALL)
    assert len(texts) == len(pages), done.stderr
    return [json.loads(html.unescape(text)) for text in texts]
