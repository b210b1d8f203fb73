"""Take README's picture of the explorer: ``python docs/images/explorer.py``; needs Playwright."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import kvsim
from kvsim.cli import main as cli

TARGET = Path(__file__).with_name("explorer.png")
COLOURS = 128
COMMAND = [
    *("run", "--workload", "multi-turn", "--model", "llama-3-8b", "--gpu", "l4"),
    *("--num-gpu-blocks-override", "250", "--max-model-len", "2048"),
    *("--num-requests", "60", "--request-rate", "4"),
]


def main() -> None:
    """Serve README's chats, and look at what a late turn of one holds."""
    folder = Path(tempfile.mkdtemp())
    file = folder / "report.html"
    cli([*COMMAND, "--out", str(folder / "run"), "--report", str(file)])
    requests = kvsim.load(folder / "run").requests
    done = requests[requests["finish_reason"] == 0]
    shown = done[done["num_cached_tokens"] > 600][2]
    browser = os.environ.get("PLAYWRIGHT_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = one.new_page(viewport={"width": 1120, "height": 1400})
        page.goto(file.as_uri())
        page.wait_for_selector("#explorer[data-ready=yes]")
        page.select_option('[data-part="mode"]', "request")
        page.fill('[data-part="request"]', str(int(shown["request_id"])))
        page.press('[data-part="request"]', "Enter")
        page.click('[data-part="all"]')
        page.wait_for_timeout(500)
        top = page.locator('[data-part="legend"]').bounding_box()
        end = page.locator('[data-part="pool"]').bounding_box()
        assert top is not None
        assert end is not None
        height = end["y"] + end["height"] - top["y"] + 8
        box = {"x": 10, "y": top["y"] - 4, "width": 1100, "height": height}
        shot = page.screenshot(clip=box, full_page=True)
        one.close()
    shutil.rmtree(folder)
    picture = Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLOURS, dither=0)
    picture.save(TARGET, optimize=True)


if __name__ == "__main__":
    main()
