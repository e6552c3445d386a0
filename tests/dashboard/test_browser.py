"""Every page in a real Chromium: what axe finds, landmarks, keyboard, small screens, and long words.

Needs Chromium (Debian: `apt-get install chromium`); the check by axe also needs npm, for axe-core.
"""

import asyncio
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from dashboard.app import Dashboard, create_app
from dashboard.sign_in import SignIn
from migrations import upgrade
from store.examples import COMPLAINTS, QUESTIONS, THANKS
from store.journal import JournalWriter
from store.keys import KeyFile, Keyring
from store.record import Record
from store.record_handle import RecordHandle
from store.settings import read_settings
from tests.dashboard.conftest import OWNER_KEY, fill
from tests.dashboard.test_hostile_text import PAGES, HostileGateway, fill_more
from tests.proxy.upstream import running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = "axe-core@4.14.1"
#: An ordinary sentence with a word that fits no line.
TEXT = "Shorter please, and no " + "Donaudampfschifffahrt" * 20
PATHS = (
    *(path for path in PAGES if path != "/dashboard/running"),
    "/dashboard/versions/9",
    "/dashboard/turns/none",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.timeout(600),
]


async def _write(url: str) -> None:
    record = await Record.open(url)
    await fill(record, TEXT)
    await fill_more(record, TEXT)
    await record.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page over a record that fills every page."""
    home = tmp_path_factory.mktemp("page")
    url = f"sqlite+aiosqlite:///{home / 'patina.db'}"
    upgrade(url)
    asyncio.run(_write(url))
    keys = KeyFile(home / "keys.json")
    keys.add("bob")
    dashboard = Dashboard(
        settings=read_settings({"home": home}),
        record=RecordHandle(lambda: Record.open(url)),
        keys=Keyring(OWNER_KEY, named=keys),
        sign_in=SignIn(home / "sign_in"),
        journal=JournalWriter(home / "journal", "dashboard"),
        gateway_url="http://127.0.0.1:9",
        first_key=OWNER_KEY,
    )
    dashboard._gateway = dashboard._chat._gateway = HostileGateway(TEXT)  # type: ignore[assignment]  # same methods
    asyncio.run(dashboard._chat.send(TEXT, "", "0"))
    with running(create_app(dashboard)) as found:
        yield found


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Browser]:  # after the address: Playwright keeps a running loop
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def sign_in(context: BrowserContext, address: str) -> Page:
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{address}/dashboard/sign-in")
    page.fill("#key", OWNER_KEY)
    page.keyboard.press("Enter")
    page.wait_for_url("**/dashboard")
    return page


def open_all(page: Page) -> None:
    """Open what a page folds away."""
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")


def read_axe(folder: Path) -> str:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, so axe-core cannot be fetched")
    packed = subprocess.run([npm, "pack", AXE], cwd=folder, capture_output=True, text=True, check=False)
    if packed.returncode:
        pytest.skip(f"axe-core cannot be fetched: {packed.stderr.strip()[-200:]}")
    with tarfile.open(folder / packed.stdout.split()[-1]) as archive:
        source = archive.extractfile("package/axe.min.js")
        assert source is not None
        return source.read().decode()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_page(
    browser: Browser, address: str, tmp_path: Path, scheme: str
) -> None:
    axe = read_axe(tmp_path)
    context = browser.new_context(bypass_csp=True, color_scheme=scheme)  # type: ignore[arg-type]
    signed_out = context.new_page()
    signed_out.goto(f"{address}/dashboard/sign-in")
    problems = {"sign-in": _serious(signed_out, axe)}
    page = sign_in(context, address)
    for path in PATHS:
        page.goto(address + path)
        open_all(page)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            problems[f"{path} at {width}"] = _serious(page, axe)
    context.close()
    assert {path: found for path, found in problems.items() if found} == {}


def _serious(page: Page, axe: str) -> list[tuple[str, str]]:
    page.add_script_tag(content=axe)
    found = page.evaluate("axe.run()")
    assert found["passes"]
    return [
        (one["id"], one["nodes"][0]["html"][:300])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_has_its_landmarks_and_fits_the_screen(browser: Browser, address: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800})
    page = sign_in(context, address)
    too_wide: dict[str, list[str]] = {}
    for path in PATHS:
        page.goto(address + path)
        for landmark in ("header", "main#content", "footer", "h1"):
            assert page.locator(landmark).count() == 1, (path, landmark)
        assert page.title().endswith(" · Patina")
        open_all(page)
        wide = page.evaluate(
            """() => [...document.querySelectorAll('main *')].filter(one => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.scroll'))
            .map(one => one.outerHTML.slice(0, 120))"""
        )
        if wide:
            too_wide[path] = wide
    context.close()
    assert too_wide == {}


def test_the_keyboard_reaches_everything_and_the_focus_is_seen(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=True)
    page = sign_in(context, address)
    for path in (
        "/dashboard",
        "/dashboard/versions/1",
        "/dashboard/turns/branch",
        "/dashboard/conversations?session=session",
        "/dashboard/steps",
    ):
        page.goto(address + path)
        expected = page.evaluate(
            """() => [...document.querySelectorAll('a[href], button, input:not([type=hidden]), textarea, select, summary, [tabindex="0"]')]
            .filter(one => one.checkVisibility()).length"""
        )
        page.evaluate("document.activeElement.blur()")
        seen = 0
        for _ in range(expected):
            page.keyboard.press("Tab")
            focus = page.evaluate(
                """() => { const one = document.activeElement; if (one === document.body || one.dataset.seen) return null; one.dataset.seen = 1;
                const style = getComputedStyle(one), node = one.querySelector('.node');
                return [one.tagName, style.outlineStyle !== 'none' || (node && getComputedStyle(node).strokeWidth === '5px')] }"""
            )
            assert focus is not None, (path, seen, expected)
            assert focus[1], (path, focus)
            seen += 1
        assert seen == expected, path
    page.goto(address + "/dashboard/versions")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    context.close()


def test_what_a_person_opened_and_focused_stays_so_when_a_part_is_replaced(
    browser: Browser, address: str
) -> None:
    context = browser.new_context()
    page = sign_in(context, address)
    page.goto(address + "/dashboard/live")
    page.locator("td summary").last.click()
    before = page.evaluate(
        "() => { const all = [...document.querySelectorAll('td details')]; all.forEach(one => one.dataset.old = 1); return all.map(one => one.open) }"
    )
    expect(page.locator("td details[data-old]")).to_have_count(0, timeout=60_000)
    assert page.evaluate("[...document.querySelectorAll('td details')].map(one => one.open)") == before
    assert before[-1] is True
    assert page.evaluate("document.activeElement.parentElement.open") is True
    context.close()


def test_a_question_that_is_chosen_by_keyboard_is_sent_once_and_its_reply_is_in_view_with_the_text_ready_for_a_reaction(
    browser: Browser, address: str
) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = sign_in(context, address)
    page.goto(address + "/dashboard/try")
    page.click("text=New conversation")
    expect(page.locator(".message.user")).to_have_count(0)
    expect(page.locator("#text")).to_be_focused()
    sent: list[str] = []
    page.on("request", lambda one: sent.append(one.url) if one.method == "POST" else None)
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.value") == QUESTIONS[-1]
    page.evaluate(
        "() => { const one = document.activeElement; one.form.requestSubmit(one); one.form.requestSubmit(one) }"
    )
    page.wait_for_url("**/try#newest")
    assert len(sent) == 1
    expect(page.locator("#newest")).to_be_in_viewport()
    expect(page.locator("#newest")).to_contain_text(QUESTIONS[-1])
    expect(page.locator("#text")).to_be_focused()
    expect(page.get_by_role("button", name=COMPLAINTS[0])).to_be_visible()
    context.close()


def test_a_finger_reacts_to_a_reply_on_a_phone_and_no_keyboard_covers_it(
    browser: Browser, address: str
) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = sign_in(context, address)
    page.goto(address + "/dashboard/try")
    page.get_by_role("button", name=THANKS).tap()
    expect(page.locator("#newest")).to_contain_text(THANKS)
    expect(page.locator("#newest")).to_be_in_viewport()
    expect(page.locator("#text")).not_to_be_focused()
    assert all(
        one.bounding_box()["height"] >= 40  # type: ignore[index]  # it is visible
        for one in page.locator("[name=suggestion]").all()
    )
    context.close()


def test_a_page_that_follows_leads_to_the_sign_in_once_another_tab_signed_out(
    browser: Browser, address: str
) -> None:
    context = browser.new_context()
    page = sign_in(context, address)
    page.goto(address + "/dashboard/live")
    other = context.new_page()
    other.goto(address + "/dashboard")
    other.click("text=Sign out")
    page.wait_for_url("**/dashboard/sign-in?next=%2Fdashboard%2Flive", timeout=60_000)
    expect(page.locator("main")).to_have_count(1)
    context.close()
