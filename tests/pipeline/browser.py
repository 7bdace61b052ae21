"""A page in a real browser: Chromium, without a screen, in a profile of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """Chromium.

    Args:
        scratch: For profiles.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            pytest.fail("there is no Chromium to look at reports with: apt-get install chromium")
        self._program = program

    def dom(self, page: Path, *options: str) -> str:
        """What it has made of a page, as HTML."""
        return self._run(page, "--dump-dom", *options)

    def picture(self, page: Path, image: Path, *options: str) -> tuple[int, int]:
        """Take a picture; returns its width and height."""
        self._run(page, f"--screenshot={image}", *options)
        head = image.read_bytes()[:24]
        assert head.startswith(b"\x89PNG")
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")

    def _run(self, page: Path, *options: str) -> str:
        profile = self._scratch / f"profile-{len(list(self._scratch.iterdir()))}"
        command = [
            self._program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
            "--disable-background-networking", f"--user-data-dir={profile}", *options, page.as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def texts(dom: str, tag: str) -> list[str]:
    """What stands in all elements of a kind, without the tags inside."""
    texts = re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", dom, re.DOTALL)
    return [re.sub(r"<[^>]*>", "", each).strip() for each in texts]
