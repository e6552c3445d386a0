"""The web page in a real browser: a new person's path, without JavaScript too, and what axe finds.

Needs Chromium (Debian: `apt-get install chromium`); the accessibility check also needs npm, for axe-core.
"""

import re
import shutil
import sqlite3
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from lab.evals.stack import Stack
from lab.screenshots import sign_in
from store.settings import read_settings

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = "axe-core@4.14.1"
WAIT_MS = 180_000
SECTIONS = (
    "", "/versions", "/versions/1", "/unused", "/conversations", "/steps", "/forgotten", "/people", "/live", "/try", "/settings",
)  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = read_settings({"batch_size": 2, "max_wait_s": 3.0})
    with Stack(settings, home=tmp_path_factory.mktemp("stack")) as stack:
        yield stack


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def open_page(browser: Browser, stack: Stack, *, scripts: bool = True) -> Page:
    page = browser.new_context(java_script_enabled=scripts).new_page()
    page.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)  # a reply takes its time on a busy machine
    sign_in(page, stack.home)
    expect(page.locator("h1")).to_have_text("Is it learning?")
    return page


def address(stack: Stack, path: str) -> str:
    return stack.base_url.removesuffix("/v1") + path


def complain(page: Page) -> None:
    """Ask three questions in the chat panel, and complain about each answer."""
    for question in (
        "What is the capital of France?",
        "What is the plural of mouse?",
        "What is the capital of Peru?",
    ):
        page.fill("#text", question)
        page.click("text=Send")
        expect(page.locator("#newest")).to_contain_text(question)
        page.fill("#text", "Shorter please, and no emoji.")
        page.click("text=Send")
        expect(page.locator("#newest")).to_contain_text("Shorter please")
        page.click("text=New conversation")


def in_record(stack: Stack, query: str) -> float:
    """Return the number that a query finds; 0.0: none."""
    with closing(sqlite3.connect(stack.home / "patina.db")) as database:
        row = database.execute(query).fetchone()
    return float(row[0] or 0.0) if row else 0.0


def wait_for_text(page: Page, where: str, text: str) -> None:
    """Reload until a part of the page has the text: without scripts a page does not follow by itself."""
    for _ in range(WAIT_MS // 2_000):
        if text in page.locator(where).inner_text():
            return
        page.wait_for_timeout(2_000)
        page.reload()
    raise AssertionError(f"{text!r} is not shown in {where}")


def test_a_new_person_talks_complains_sees_the_version_and_rolls_back(browser: Browser, stack: Stack) -> None:
    page = open_page(browser, stack, scripts=False)
    page.click("text=try it here")
    complain(page)
    page.click("nav >> text=Conversations")
    wait_for_text(page, "tbody", "1 complaint")
    page.goto(address(stack, "/dashboard/versions"))
    wait_for_text(page, "main", "patina-tiny@1")
    page.click("text=patina-tiny@1")
    expect(page.locator("main")).to_contain_text("Shorter please, and no emoji.")
    page.goto(address(stack, "/dashboard"))
    page.click("text=Pause training")
    expect(page.locator("main")).to_contain_text("Resume training")
    page.goto(address(stack, "/dashboard/versions"))
    base = page.locator("tr", has_text="the model without anything learnt")
    base.get_by_role("button").click()
    expect(base).to_contain_text("live")
    assert stack.status()["live"]["patina-tiny"] == 0
    page.goto(address(stack, "/dashboard/conversations"))
    page.locator("tbody a").first.click()
    page.click("text=Details >> nth=0")
    page.click("text=Tokens and log-probabilities")
    expect(page.locator("#tokens")).to_contain_text("Scored again by patina-tiny@0")
    page.go_back()
    page.fill("#text", "<b>shorter</b>")
    page.get_by_role("button", name="Bad").click()
    expect(page.locator("[role=status]")).to_contain_text("Your feedback is recorded")
    turn = page.url.split("/")[-1].split("?")[0]
    page.click("text=Forget this turn")
    expect(page.locator("main")).to_contain_text("This cannot be undone")
    page.click("main button >> text=Forget")
    for _ in range(WAIT_MS // 2_000):
        page.goto(address(stack, "/dashboard/forgotten"))
        if page.locator("td", has_text="running").count() == 0:
            break
        page.wait_for_timeout(2_000)
    expect(page.locator("tbody")).to_contain_text("turns deleted")
    expect(page.locator("tbody")).to_contain_text(turn)
    page.goto(address(stack, f"/dashboard/turns/{turn}"))
    expect(page.locator("main")).to_contain_text("There is no such turn")
    page.goto(address(stack, "/dashboard"))
    page.click("text=Sign out")
    expect(page.locator("h1")).to_have_text("Sign in")


@pytest.mark.timeout(900)
def test_training_is_paused_resumed_and_started_and_a_version_is_pinned_and_tried_without_scripts(
    browser: Browser, stack: Stack
) -> None:
    page = open_page(browser, stack, scripts=False)
    main = page.locator("main")
    if stack.status()["training"] == "running":  # the test before leaves it paused
        page.click("text=Pause training")
    expect(main.get_by_role("button", name="Train now")).to_have_count(0)
    made = in_record(stack, "SELECT max(version) FROM adapters")
    page.goto(address(stack, "/dashboard/try"))
    complain(page)
    page.goto(address(stack, "/dashboard"))
    page.click("text=Resume training")
    expect(main).to_contain_text("Pause training")
    assert stack.status()["training"] == "running"
    before = time.time()
    page.click("text=Train now")
    expect(main).to_contain_text("Is it learning?")
    assert in_record(stack, "SELECT value FROM controls WHERE name = 'train_now'") >= before
    for _ in range(WAIT_MS // 2_000):
        if (live := stack.status()["live"].get("patina-tiny", 0)) > made:
            break
        page.wait_for_timeout(2_000)
    assert live > made
    page.goto(address(stack, f"/dashboard/versions/{live}"))
    page.get_by_role("button", name="Pin", exact=True).click()
    expect(main).to_contain_text("Pinned: its files stay")
    page.click("text=Unpin")
    expect(main.get_by_role("button", name="Pin", exact=True)).to_be_visible()
    expect(main).not_to_contain_text("Pinned: its files stay")
    page.goto(address(stack, "/dashboard/versions"))
    base = page.locator("tr", has_text="the model without anything learnt")
    base.get_by_role("button").click()
    expect(base).to_contain_text("live")
    page.goto(address(stack, f"/dashboard/versions/{live}"))
    page.click("text=Try it with new conversations")
    expect(main).to_contain_text("on trial with 50% of the new conversations")
    page.goto(address(stack, "/dashboard/try"))
    answered: set[str] = set()
    for number in range(24):
        page.fill("#text", f"What is {number} plus 3?")
        page.click("text=Send")
        answered.add(page.locator("#newest + .pair .from").first.inner_text().partition(" ")[0])
        if answered == {"patina-tiny@0", f"patina-tiny@{live}"}:
            break
        page.click("text=New conversation")
    assert answered == {"patina-tiny@0", f"patina-tiny@{live}"}


def test_parts_of_a_page_follow_without_a_reload_and_no_script_of_ours_is_blocked(
    browser: Browser, stack: Stack
) -> None:
    page = open_page(browser, stack)
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address(stack, "/dashboard/live"))
    row = page.get_by_role("row", name=re.compile("^recorder "))
    expect(row).to_contain_text("running")
    with page.expect_response(re.compile("/dashboard/live")) as answer:
        pass
    assert "<html" not in answer.value.text()
    assert problems == []


def test_axe_finds_nothing_serious(browser: Browser, stack: Stack, tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, so axe-core cannot be fetched")
    packed = subprocess.run([npm, "pack", AXE], cwd=tmp_path, capture_output=True, text=True, check=False)
    if packed.returncode:
        pytest.skip(f"axe-core cannot be fetched: {packed.stderr.strip()[-200:]}")
    with tarfile.open(tmp_path / packed.stdout.split()[-1]) as archive:
        source = archive.extractfile("package/axe.min.js")
        assert source is not None
        axe = source.read().decode()
    for scheme in ("light", "dark"):
        context = browser.new_context(bypass_csp=True, color_scheme=scheme)
        page = context.new_page()
        page.set_default_timeout(60_000)
        sign_in(page, stack.home)
        for path in SECTIONS:
            page.goto(address(stack, f"/dashboard{path}"))
            page.add_script_tag(content=axe)
            found = page.evaluate("axe.run()")
            serious = [
                (one["id"], one["nodes"][0]["html"])
                for one in found["violations"]
                if one["impact"] in ("serious", "critical")
            ]
            assert found["passes"]
            assert serious == [], f"{scheme} {path}"
        context.close()
