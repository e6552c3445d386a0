"""Make the pictures of the web page: `python -m lab.screenshots FOLDER [--docs]`.

Patina starts with its default model in a home of its own, a client talks and complains until versions are live, and Chromium takes a picture of
each page, light and dark, for a phone and a desktop. `--docs` also writes them to docs/screenshots.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

import httpx
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from lab.evals.stack import Stack
from store.examples import COMPLAINTS, HELD_OUT, QUESTIONS
from store.settings import REPOSITORY, child_environment, read_settings
from store.values import Json

WIDTHS = {"phone": (390, 844), "desktop": (1280, 800)}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
#: The pages with their paths; None: looked up in the lists.
PAGES = {
    "learning": "", "versions": "/versions", "version": "/versions/1", "unused": "/unused", "conversations": "/conversations", "conversation": None,
    "branches": None, "turn": None, "tokens": None, "steps": "/steps", "people": "/people", "live": "/live", "try": "/try",
    "settings": "/settings", "forget": None, "forgotten": "/forgotten", "sign-in": "/sign-in",
}  # fmt: skip
INDEX_HEAD = """# Pictures

Made by `python -m lab.screenshots FOLDER --docs`; cut where long.

|page|phone, light|phone, dark|desktop, light|desktop, dark|
|-|-|-|-|-|"""
#: Pixels of a picture in docs, and its colours.
_DOCS_HEIGHT, _COLOURS = {"phone": 1_800, "desktop": 1_400}, 96
_VERSIONS, _WAIT_S = 2, 3_600.0


def talk(stack: Stack) -> None:
    """Complain about long answers until versions are live, then thank for short ones."""
    until = time.monotonic() + _WAIT_S
    turn = 0
    while (
        live := stack.status()["live"].get(stack.settings.policy, 0)
    ) < _VERSIONS and time.monotonic() < until:
        _converse(stack, QUESTIONS[turn % len(QUESTIONS)], COMPLAINTS[0])
        turn += 1
        time.sleep(5.0)
    if live < 1:
        raise SystemExit("no version went live")
    for question in QUESTIONS:
        _converse(stack, question, "Perfect, thank you!")
    branch(stack)
    time.sleep(10.0)


def branch(stack: Stack) -> None:
    """Go on from one reply in three ways, and from one of these in two."""
    asked = {"role": "user", "content": QUESTIONS[0]}
    first = _chat(stack, [asked])
    ways = (COMPLAINTS[0], "Perfect, thank you!", "And why is that so?")
    for words in ways:
        said = {"role": "user", "content": words}
        reply = _chat(stack, [asked, first, said])
    for words in ("And what else?", "Too long again. Shorter!"):
        _chat(stack, [asked, first, said, reply, {"role": "user", "content": words}])


def use_page(page: Page, base: str) -> None:
    """Ask something in the chat panel, and forget a turn."""
    page.goto(f"{base}/try")
    for words in (HELD_OUT[0], COMPLAINTS[0]):
        page.fill("#text", words)
        page.click("text=Send")
        page.locator("#newest", has_text=words).wait_for()
    page.goto(f"{base}/conversations")
    page.locator("tr", has_text="Perfect").first.locator("a").click()
    page.click("text=Details >> nth=0")
    page.click("text=Forget this turn")
    page.click("main button >> text=Forget")
    while page.locator("td", has_text="running").count():
        time.sleep(2.0)
        page.goto(f"{base}/forgotten")


def _converse(stack: Stack, question: str, reaction: str) -> None:
    asked = {"role": "user", "content": question}
    _chat(stack, [asked, _chat(stack, [asked]), {"role": "user", "content": reaction}])


def _chat(stack: Stack, messages: list[Json]) -> Json:
    """Return the reply's message."""
    body = {"model": stack.settings.policy, "messages": messages}
    headers = {"authorization": f"Bearer {stack.key}", "user-agent": "Desk/1.0"}
    reply = httpx.post(f"{stack.base_url}/chat/completions", json=body, headers=headers, timeout=600)
    message: Json = reply.raise_for_status().json()["choices"][0]["message"]
    return message


def sign_in(page: Page, home: Path) -> str:
    """Sign in by a link; returns the address of the page.

    The link's page goes on by itself (`dashboard/templates/signed_in.html`). It would interrupt a navigation that begins before this ended.
    """
    done = subprocess.run(
        [sys.executable, "run.py", "open", "--no-browser", "--home", str(home)],
        cwd=REPOSITORY, env=child_environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    link = done.stdout.splitlines()[0]
    page.goto(link)
    page.wait_for_url("**/dashboard")
    return link.split("/dashboard/")[0] + "/dashboard"


def pages(page: Page, base: str) -> dict[str, str]:
    """Return the paths by name; those of a conversation and a turn are looked up in the lists."""

    def look_up(link: Locator) -> str:
        return (link.first.get_attribute("href") or "").removeprefix("/dashboard")

    page.goto(f"{base}/conversations")
    conversation = look_up(page.locator("tr", has_text="complaint").locator("a"))
    branches = look_up(page.locator("tr", has_text="Too long again").locator("a"))
    page.goto(base + conversation)
    turn = look_up(page.locator("a", has_text="Details"))
    found = {
        "conversation": conversation, "branches": branches, "turn": turn, "tokens": f"{turn}/tokens", "forget": f"{turn}/forget",
    }  # fmt: skip
    return {name: found[name] if path is None else path for name, path in PAGES.items()}


def take(browser: Browser, home: Path, folder: Path) -> None:
    """Write `NAME-WIDTH-SCHEME.png` of every page."""
    for width, (w, h) in WIDTHS.items():
        for scheme in SCHEMES:
            context = browser.new_context(viewport={"width": w, "height": h}, color_scheme=scheme)
            page = context.new_page()
            page.set_default_timeout(60_000)
            base = sign_in(page, home)
            for name, path in pages(page, base).items():
                page.goto(base + path)
                if name == "steps":
                    for _ in range(2):  # the samples are inside
                        page.evaluate(
                            "[...document.querySelectorAll('.step details')].slice(0, 2).forEach(d => d.open = true)"
                        )
                shot = folder / f"{name}-{width}-{scheme}.png"
                page.screenshot(path=shot, full_page=True)
                wide = page.evaluate(
                    "document.documentElement.scrollWidth > document.documentElement.clientWidth"
                )
                print(f"{shot.name}{' OVERFLOWS' if wide else ''}", flush=True)
            context.close()


def write_docs(folder: Path) -> None:
    """Write all pictures to docs/screenshots, cut at a height and without loss of sharpness, and the page that lists them."""
    target = REPOSITORY / "docs" / "screenshots"
    target.mkdir(exist_ok=True)
    rows = [INDEX_HEAD]
    for name in PAGES:
        cells = []
        for width in WIDTHS:
            for scheme in SCHEMES:
                shot = f"{name}-{width}-{scheme}"
                with Image.open(folder / f"{shot}.png") as picture:
                    cut = picture.convert("RGB").crop(
                        (0, 0, picture.width, min(picture.height, _DOCS_HEIGHT[width]))
                    )
                few = cut.quantize(_COLOURS, dither=Image.Dither.NONE).convert("RGB")
                few.save(target / f"{shot}.webp", lossless=True, quality=100, method=4)
                cells.append(f"![{name}]({shot}.webp)")
        rows.append(f"|{name}|{'|'.join(cells)}|")
    (target / "README.md").write_text("\n".join(rows) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--docs", action="store_true")
    parser.add_argument(
        "--home", type=Path, help="keep the home here; one that an earlier run made is shown as it is"
    )
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("Chromium is not installed")
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        home = (arguments.home or Path(temporary)).resolve()
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_new = not (home / "patina.db").exists()
        with (
            Stack(read_settings({"batch_size": 2, "max_wait_s": 3.0}), home=home) as stack,
            sync_playwright() as playwright,
        ):
            if is_new:
                talk(stack)
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page()
            page.set_default_timeout(60_000)
            if is_new:
                use_page(page, sign_in(page, home))
            take(browser, home, folder)
            browser.close()
    if arguments.docs:
        write_docs(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
