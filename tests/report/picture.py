"""The README's picture of a report: `python -m tests.report.picture report.html docs/images/report.png`."""

from __future__ import annotations

import argparse
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.report.conftest import ARGUMENTS, CHROMIUM


def take(page_file: Path, picture: Path) -> None:
    """The top of the page in the light theme, with the pointer over the picture so that a sample is told."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        size = {"width": 1180, "height": 840}
        page = browser.new_page(viewport=size, color_scheme="light", device_scale_factor=1.5)  # type: ignore[arg-type]
        page.goto(page_file.absolute().as_uri())
        box = page.locator("svg.timeline").first.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40)
        page.screenshot(path=picture)
        browser.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("report", type=Path)
    options.add_argument("picture", type=Path)
    chosen = options.parse_args()
    take(chosen.report, chosen.picture)


if __name__ == "__main__":
    main()
