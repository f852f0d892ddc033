"""Pictures of the admin page from a service with a few users, groups and buckets, as docs show it.

Run as `.venv/bin/python tools/page_picture.py` with Chromium's headless shell installed (`./dev test` does):
it writes `docs/guide/cumulus-admin-page.png`. With a directory as argument it writes every page there, 360
and 1280 pixels wide, to be looked at.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/interop")]

from browser import Browser, chromium  # noqa: E402
from s3_server import Server, cumulus, make, started  # noqa: E402

PICTURE = ROOT / "docs/guide/cumulus-admin-page.png"
PORTS = "[server]\nport = 0\n[admin]\nport = 0\n"
PEOPLE = (
    ("alice", "Alice Arnold", "physics", "4G"),
    ("bob", "Bob Becker", "physics", "1200M"),
    ("carol", "Carol Claes", "genomics", "20G"),
    ("dave", "Dave Dufour", "genomics", ""),
)
WIDE, NARROW = 1280, 360


def fill(directory: Path) -> None:
    """Groups, users with quotas, buckets that are directories with files in them."""
    for name, weight in (("physics", "4"), ("genomics", "1")):
        cumulus("--dir", str(directory), "group", "add", name, "--weight", weight)
    for name, display, group, limit in PEOPLE:
        address = f"{name}@example.org"
        words = ("user", "add", name, "--display", display, "--email", address, "--group", group)
        cumulus("--dir", str(directory), *words)
        if limit:
            cumulus("--dir", str(directory), "quota", "set", name, "--bytes", limit)
        files = directory.parent / f"{name}-files"
        files.mkdir()
        for number in range(len(name)):
            with (files / f"run-{number}.dat").open("wb") as file:
                file.truncate((number + 1) * 170_000_000)  # holes, so that it takes no room
        cumulus(
            "--dir", str(directory), "bucket", "add", f"{name}-data", "--owner", name, "--path", str(files)
        )
    cumulus("--dir", str(directory), "user", "change", "dave", "--disable")


def enter(browser: Browser, server: Server) -> str:
    """Log in; where the pages are."""
    base = f"http://127.0.0.1:{server.admin_port}/ui"
    browser.goto(f"{base}/login")
    browser.fill("Access key", server.key)
    browser.fill("Secret key", server.secret)
    browser.press("Log in")
    return base


def every_page(browser: Browser, base: str, into: Path) -> None:
    """Each page in both widths."""
    into.mkdir(parents=True, exist_ok=True)
    browser.goto(f"{base}/users")
    one = browser.js('[...document.querySelectorAll("td a")].find(e => e.textContent === "alice").href')
    pages = {
        "overview": f"{base}/",
        "users": f"{base}/users",
        "user": one,
        "groups": f"{base}/groups",
        "group": f"{base}/groups/physics",
        "buckets": f"{base}/buckets",
        "bucket": f"{base}/buckets/carol-data",
        "usage": f"{base}/usage",
    }
    for name, url in pages.items():
        browser.goto(url)
        for width in (WIDE, NARROW):
            browser.screenshot(into / f"{name}-{width}.png", width, 900)
            over = browser.js("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            print(f"{name} at {width}: {over} pixels wider than the window")


def main() -> None:
    """The picture of the docs, or all pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("into", nargs="?", type=Path, help="write every page there, in two widths")
    into = parser.parse_args().into
    with tempfile.TemporaryDirectory(prefix="page-") as scratch:
        directory = Path(scratch, "D")
        key, secret = make(directory, PORTS)
        fill(directory)
        with started(directory, key, secret) as server, chromium() as browser:
            base = enter(browser, server)
            if into is not None:
                every_page(browser, base, into)
                return
            browser.goto(f"{base}/users")
            browser.screenshot(PICTURE, 1000, 480)


if __name__ == "__main__":
    main()
