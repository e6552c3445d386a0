"""Who sees what, what a form may do, and that no text of a conversation becomes markup."""

import asyncio
import hashlib
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import httpx
import orjson
import pytest
from starlette.routing import Route

from dashboard import app
from dashboard.sign_in import COOKIE, COOKIE_S, LINK_S, SignIn
from store.examples import COMPLAINTS, QUESTIONS
from store.journal import EntryKind, read_entries, segments
from store.keys import KeyFile, Keyring
from store.record import Record
from store.values import AdapterState, Heartbeat, PreviewReply, WishState
from tests.dashboard.conftest import HOSTILE, OWNER_KEY, POLICY, sign_in
from tests.dashboard.test_hostile_text import HostileGateway
from tests.making import make_verdict

PAGES = (
    "/dashboard", "/dashboard/", "/dashboard/versions", "/dashboard/versions/1", "/dashboard/unused", "/dashboard/conversations",
    "/dashboard/conversations?session=session", "/dashboard/turns/t1", "/dashboard/turns/t1/tokens", "/dashboard/turns/t1/forget", "/dashboard/forgotten", "/dashboard/steps", "/dashboard/people", "/dashboard/settings",
    "/dashboard/live", "/dashboard/running", "/dashboard/try",
)  # fmt: skip
OWNER_ONLY = (
    "/dashboard/settings",
    "/dashboard/try",
)


async def csrf_of(page: httpx.AsyncClient) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', (await page.get("/dashboard")).text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_asks_for_a_sign_in_and_then_escapes_what_it_shows(
    page: httpx.AsyncClient, path: str
) -> None:
    refused = await page.get(path)
    assert refused.status_code == 303
    assert refused.headers["location"].startswith("/dashboard/sign-in?next=")
    await sign_in(page)
    shown = await page.get(path)
    assert shown.status_code == 200
    assert "<script>alert" not in shown.text
    assert "<img" not in shown.text
    assert "script-src 'self'" in shown.headers["content-security-policy"]
    assert shown.headers["cache-control"] == "no-store"


async def test_hostile_text_is_shown_as_text(page: httpx.AsyncClient) -> None:
    await sign_in(page)
    for path in ("/dashboard/turns/t1", "/dashboard/versions/1", "/dashboard/steps", "/dashboard"):
        shown = (await page.get(path)).text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown, path
        assert not {"\x1b", "\u202e"} & {*shown}, path


async def test_the_sections_stand_in_the_order_in_which_people_ask(
    page: httpx.AsyncClient, keys: KeyFile
) -> None:
    shown = {}
    for who, key in (("owner", OWNER_KEY), ("bob", keys.add("bob"))):
        text = (await page.get("/dashboard", headers={"x-patina-key": key})).text
        shown[who] = re.findall(
            r">([^<]+)</a></li>", text.split('aria-label="Sections"')[1].split("</nav>")[0]
        )
    first = ["Learning", "Versions", "Not used", "Conversations", "Steps", "People"]
    assert shown == {"owner": [*first, "Settings", "Live", "Try it"], "bob": [*first, "Live"]}


@pytest.mark.parametrize("path", PAGES)
async def test_a_key_opens_a_page_for_a_program(page: httpx.AsyncClient, path: str) -> None:
    assert (await page.get(path, headers={"authorization": f"Bearer {OWNER_KEY}"})).status_code == 200
    assert (await page.get(path, headers={"x-patina-key": OWNER_KEY})).status_code == 200
    assert (await page.get(path, headers={"authorization": "Bearer wrong"})).status_code == 303
    # The Bearer token may be for the backend (`--upstream-auth passthrough`): then ours comes beside it.
    both = {"authorization": "Bearer sk-theirs", "x-patina-key": OWNER_KEY}
    assert (await page.get(path, headers=both)).status_code == 200
    wrong = await page.get(
        path, headers={"x-patina-key": "patina-wrong", "authorization": "Bearer sk-theirs"}
    )
    assert wrong.status_code == 303
    assert "sk-theirs" not in wrong.text + str(wrong.headers)


@pytest.mark.parametrize("header", ["authorization", "x-patina-key"])
@pytest.mark.parametrize("who", ["bob", "owner", "revoked", "wrong"])
async def test_every_route_with_every_key_shows_no_other_keys_words_and_takes_no_action(
    page: httpx.AsyncClient, dashboard: app.Dashboard, keys: KeyFile, record_url: str, header: str, who: str
) -> None:
    key = {"owner": OWNER_KEY, "wrong": "patina-wrong"}.get(who) or keys.add(who, adapter="")
    if who == "revoked":
        keys.revoke(who)
    headers = {header: f"Bearer {key}" if header == "authorization" else key}
    fills = {"{number:int}": "1", "{turn_id}": "t1"}
    seen = set()
    for route in dashboard.routes():
        if not isinstance(route, Route) or route.path in (
            "/metrics",
            "/dashboard/sign-in",
            "/v1/dashboard",
        ):
            continue
        path = route.path
        for field, value in fills.items():
            path = path.replace(field, value)
        if "POST" in (route.methods or ()):
            form = {"version": "0", "paused": "1", "policy": POLICY, "thumbs": "up", "text": "hi", "csrf": ""}
            assert (await page.post(path, data=form, headers=headers)).status_code == 403, path
            continue
        for part in ({}, {"hx-request": "true"}):
            reply = await page.get(path, headers=headers | part)
            seen.add(reply.status_code)
            assert key not in reply.text + str(reply.headers), path
            assert "set-cookie" not in reply.headers, path
            assert "access-control-allow-origin" not in reply.headers, path
            if who != "owner":
                assert "alert(1)" not in reply.text, path
            if who in ("revoked", "wrong"):
                assert reply.status_code == (204 if part else 303), path
    assert seen == {"owner": {200}, "bob": {200, 403, 404}}.get(who, {204, 303})
    record = await Record.open(record_url)
    assert (await record.aliases())[POLICY].version == 1
    assert not await record.is_paused()
    await record.close()


async def test_another_key_sees_its_own_turns_and_none_of_the_owners_pages(
    page: httpx.AsyncClient, keys: KeyFile
) -> None:
    await sign_in(page, keys.add("bob", adapter=""))
    listed = (await page.get("/dashboard/conversations")).text
    assert "bob&#39;s secret" in listed
    assert "alert(1)" not in listed
    assert (await page.get("/dashboard/turns/t1")).status_code == 404
    assert (await page.get("/dashboard/turns/t1/forget")).status_code == 404
    assert (await page.get("/dashboard/turns/t1/tokens")).status_code == 404
    assert (await page.get("/dashboard/conversations?session=session")).status_code == 404
    # The policy is shared: which versions there are, but not the words that made them.
    for path in (
        "/dashboard",
        "/dashboard/versions",
        "/dashboard/versions/1",
        "/dashboard/steps",
        "/dashboard/unused",
    ):
        shown = await page.get(path)
        assert shown.status_code == 200
        assert "alert(1)" not in shown.text, path
        assert "What it was asked to be" not in shown.text, path  # nor that there was nothing
        assert "/nowhere" not in shown.text, path
    for path in OWNER_ONLY:
        assert (await page.get(path)).status_code == 403, path


async def test_another_key_sees_the_counts_of_its_own_turns_and_no_process(
    page: httpx.AsyncClient, keys: KeyFile, record_url: str, dashboard: app.Dashboard
) -> None:
    dashboard._status.wait_s = 60.0  # a busy machine counts slowly
    key, with_own_policy = keys.add("bob", adapter=""), keys.add("eva")
    record = await Record.open(record_url)
    now = time.time()
    detail = {
        "policy": POLICY, "step_id": "step3", "step_started_at": now - 101, "phase": "training", "phase_started_at": now - 100,
    }  # fmt: skip
    await record.heartbeat(Heartbeat(process="trainer", pid=1, state="training", detail=detail, at=now))
    await record.close()
    await sign_in(page)
    owner = (await page.get("/dashboard/live")).text
    assert re.findall(r'figure">(\d+)</div><div class="label">(\w+)<', owner) == [
        ("2", "recorded"),
        ("1", "trained"),
    ]
    assert "<td>trainer</td>" in owner
    for path in ("/dashboard/live", "/dashboard/steps", "/dashboard/running"):
        shown = (await page.get(path)).text
        running = r'<span class="tag live">running</span> <strong>training</strong> for 1\d\d s'
        assert re.search(running, shown), path
        # All of claim, teacher and training is done; gate and write are not: 3.75 of 4.375 s.
        assert 'value="0.857"' in shown, path
        assert re.findall(r'<li aria-current="step">(\w+) ', shown) == ["training"], path
    assert (
        "running</span>" not in (await page.get("/dashboard/steps", params={"per_page": 1, "page": 2})).text
    )
    page.cookies.clear()
    await sign_in(page, key)
    mine = (await page.get("/dashboard/live")).text
    assert re.findall(r'figure">(\d+)</div><div class="label">(\w+)', mine) == [("1", "recorded")]
    assert "<td>trainer</td>" not in mine
    assert "step3" in (await page.get("/dashboard/running")).text  # of the policy that bob shares
    page.cookies.clear()
    await sign_in(page, with_own_policy)
    assert "step3" not in (await page.get("/dashboard/running")).text


async def test_another_key_changes_nothing_of_others(
    page: httpx.AsyncClient, keys: KeyFile, record_url: str
) -> None:
    await sign_in(page, keys.add("bob", adapter=""))
    csrf = re.search(r'name="csrf" value="([0-9a-f]{64})"', (await page.get("/dashboard/people")).text)
    assert csrf is not None
    for path, form in (
        ("rollback", {"version": "0"}),
        ("pin", {"version": "1", "stays": "1"}),
        ("wishes", {"wish": "1"}),
        ("canary", {"version": "1"}),
        ("training", {"paused": "1"}),
        ("training", {"now": "1"}),
        ("policy", {"policy": POLICY}),
        ("try", {"text": "hi"}),
        ("turns/t1/feedback", {"thumbs": "down"}),
        ("turns/t1/forget", {}),
    ):
        reply = await page.post(f"/dashboard/{path}", data={"csrf": csrf[1], **form})
        assert reply.status_code in (403, 404), path
    record = await Record.open(record_url)
    assert (await record.aliases())[POLICY].version == 1
    assert not await record.is_paused()
    assert (await record.activity()).asked_at == 0
    await record.close()


@pytest.mark.parametrize(
    "path",
    [
        "rollback",
        "pin",
        "wishes",
        "canary",
        "training",
        "policy",
        "turns/t1/feedback",
        "turns/t1/forget",
        "try",
        "sign-out",
    ],
)
async def test_an_action_needs_the_cookie_and_the_token_of_the_page(
    page: httpx.AsyncClient, path: str
) -> None:
    form = {"version": "0", "paused": "1", "policy": POLICY, "thumbs": "up", "text": "hi"}
    by_key = await page.post(
        f"/dashboard/{path}", data=form, headers={"authorization": f"Bearer {OWNER_KEY}"}
    )
    assert by_key.status_code == 403
    await sign_in(page)
    assert (await page.post(f"/dashboard/{path}", data=form)).status_code == 403
    assert (await page.post(f"/dashboard/{path}", data={**form, "csrf": "0" * 64})).status_code == 403
    as_json = await page.post(f"/dashboard/{path}", json={**form, "csrf": await csrf_of(page)})
    assert as_json.status_code == 415


async def test_rollback_and_pause_take_effect(page: httpx.AsyncClient, record_url: str) -> None:
    await sign_in(page)
    csrf = await csrf_of(page)
    record = await Record.open(record_url)
    assert (await page.post("/dashboard/rollback", data={"csrf": csrf, "version": "0"})).status_code == 303
    move = (await record.aliases())[POLICY]
    assert (move.version, move.actor) == (0, "dashboard")
    refused = await page.post("/dashboard/rollback", data={"csrf": csrf, "version": "9"})
    assert refused.status_code == 409
    assert "has no version 9" in refused.text
    assert (await page.post("/dashboard/rollback", data={"csrf": csrf, "version": "x"})).status_code == 400
    for paused in (True, False):
        await page.post("/dashboard/training", data={"csrf": csrf, "paused": "01"[paused]})
        assert await record.is_paused() is paused
    await page.post("/dashboard/training", data={"csrf": csrf, "now": "1"})
    assert (await record.activity()).asked_at > 0
    assert not await record.is_paused()
    await record.close()


async def test_a_wish_is_shown_with_where_it_acts_and_removed_from_the_page(
    page: httpx.AsyncClient, record_url: str
) -> None:
    await sign_in(page)
    csrf = await csrf_of(page)
    record = await Record.open(record_url)
    (wish,) = await record.wishes(POLICY)
    await record.change_wish(wish.wish_id, text="Shorter.", measures={"weights": 0.4})
    shown = (await page.get("/dashboard")).text
    assert "“Shorter.”" in shown
    assert "in the prompt, in the weights 40% · your own wording · stated once, last " in shown
    assert 'href="/dashboard/turns/t1">where it was said' in shown
    for number, status in (("x", 400), ("99", 404), (str(wish.wish_id), 303)):
        assert (
            await page.post("/dashboard/wishes", data={"csrf": csrf, "wish": number})
        ).status_code == status
    assert [one.state for one in await record.wishes()] == [WishState.WITHDRAWN]
    assert "withdrawn, in the weights 40%" in (await page.get("/dashboard")).text
    await record.close()


async def test_a_version_is_pinned_and_tried_from_its_page(page: httpx.AsyncClient, record_url: str) -> None:
    await sign_in(page)
    csrf = await csrf_of(page)
    record = await Record.open(record_url)
    for stays, pins in (("1", [1]), ("0", [])):
        sent = await page.post("/dashboard/pin", data={"csrf": csrf, "version": "1", "stays": stays})
        assert sent.headers["location"] == "/dashboard/versions/1"
        assert await record.pins(POLICY) == pins
    refused = await page.post("/dashboard/canary", data={"csrf": csrf, "version": "1"})
    assert (refused.status_code, "is live" in refused.text) == (409, True)
    await page.post("/dashboard/rollback", data={"csrf": csrf, "version": "0"})
    assert (await page.post("/dashboard/canary", data={"csrf": csrf, "version": "1"})).status_code == 303
    (release,) = await record.canary_releases(POLICY)
    assert (release.version, release.baseline_version, release.share) == (1, 0, 0.5)
    await record.close()
    for path in ("/dashboard", "/dashboard/versions", "/dashboard/versions/1"):
        assert "on trial with 50% of the new conversations" in (await page.get(path)).text, path


async def test_a_preview_shows_the_replies_to_questions_of_the_own_key_alone(
    page: httpx.AsyncClient, keys: KeyFile, record_url: str
) -> None:
    bob = keys.add("bob", adapter="")
    record = await Record.open(record_url)
    rows = [
        PreviewReply(turn_id=name, live=HOSTILE, new=f"new to {name}", change=1.0) for name in ("t1", "b1")
    ]
    await record.add_preview(POLICY, 1, rows)
    await record.close()
    await sign_in(page)
    own = (await page.get("/dashboard/versions/1")).text
    assert "new to t1" in own
    assert "<script>alert(1)" not in own
    page.cookies.clear()
    await sign_in(page, bob)
    other = (await page.get("/dashboard/versions/1")).text
    assert "new to b1" in other
    assert "new to t1" not in other


async def test_a_step_shows_its_samples_with_the_votes_and_where_it_ended(
    page: httpx.AsyncClient, record_url: str
) -> None:
    record = await Record.open(record_url)
    await record.add_verdict(make_verdict("t2", hint=HOSTILE, source="judge", detail={"votes": [-1, 0, -1]}))
    await record.close()
    await sign_in(page)
    shown = (await page.get("/dashboard/steps")).text
    assert "Sample 1/1" in shown
    assert re.findall(r"\((done|teacher|gate|training)\)", shown) == ["teacher", "done"]
    assert "votes -1, 0, -1" in (await page.get("/dashboard/turns/t2")).text


async def test_a_step_has_panels_for_times_metrics_engine_and_error(
    page: httpx.AsyncClient, keys: KeyFile, record_url: str
) -> None:
    key = keys.add("bob", adapter="")
    record = await Record.open(record_url)
    step = (await record.steps(POLICY))[-1]
    published = await record.adapter(POLICY, 1)
    assert published is not None
    rejected = replace(published, version=2, state=AdapterState.REJECTED, reason=HOSTILE)
    failed = replace(
        step, step_id="step3", started_at=1_070.0, finished_at=1_075.0, version=2, error=HOSTILE, metrics={}
    )
    await record.reject(rejected, failed, worker="w", release=[], drop=[])
    backend = {
        "load_s": {f"{POLICY}@1": 0.75, "other@1": 9.0},
        "attested": {f"{POLICY}@1": "attested: 0.0001"},
    }
    beat = Heartbeat(process="proxy", pid=1, state="running", detail={"backend": backend}, at=time.time())
    await record.heartbeat(beat)
    await record.close()
    await sign_in(page)
    text = (await page.get("/dashboard/steps")).text
    _, third, second, first = re.split(r'<div class="step" role="row">', text)
    assert re.findall(r"<dt>(\w+)</dt><dd>([\d,]+) ms</dd>", first) == [
        ("queue", "3,000"), ("claim", "250"), ("teacher", "1,500"), ("training", "2,000"), ("gate", "500"), ("write", "125"),
        ("load", "750"), ("total", "9,000"),
    ]  # fmt: skip
    assert re.findall(r"<dt>([^<]*paused[^<]*)</dt><dd>([\d.]+)</dd>", first) == [
        ("training paused for requests, s", "1.5"), ("times that requests paused training", "2"),
    ]  # fmt: skip
    assert 'data-label="Distill ms">2,000<' in first
    assert "proxy loaded it in 750 ms." in first
    assert "attested: 0.0001" in first
    assert "<dt>Hint</dt>" in first
    assert re.findall(r'<span class="tag (\w*)">(\w+)</span> <span class="small soft">\((\w+)\)', text) == [
        ("bad", "rejected", "gate"), ("bad", "failed", "teacher"), ("good", "published", "done"),
    ]  # fmt: skip
    for row in (second, third):
        assert "Not recorded for this step." in row
        assert "&lt;script&gt;alert(1)" in row
    page.cookies.clear()
    await sign_in(page, key)
    other = (await page.get("/dashboard/steps")).text
    assert other.count("Only the owner sees it") == 2
    assert "proxy loaded it" not in other


async def test_tokens_are_shown_on_demand_also_while_nothing_scores_them(page: httpx.AsyncClient) -> None:
    await sign_in(page)
    assert 'href="/dashboard/turns/t1/tokens"' in (await page.get("/dashboard/turns/t1")).text
    whole = (await page.get("/dashboard/turns/t1/tokens")).text
    assert "<html" in whole
    part = (await page.get("/dashboard/turns/t1/tokens", headers={"hx-request": "true"})).text
    assert "<html" not in part
    for shown in (whole, part):
        assert re.findall(r"<tr><td><code>(#\d+)</code></td><td class=\"number\">(-[\d.]+)<", shown)
        assert "The live version did not score it" in shown


async def test_the_process_reports_itself_in_status(page: httpx.AsyncClient, record_url: str) -> None:
    app = page._transport.app  # type: ignore[attr-defined]
    async with app.router.lifespan_context(app):
        record = await Record.open(record_url)
        for _ in range(6_000):
            if (beat := await record.beat_of("dashboard")) is not None:
                break
            await asyncio.sleep(0.01)
        assert beat is not None
        assert beat.state == "running"
    stopped = await record.beat_of("dashboard")
    await record.close()
    assert stopped is not None
    assert stopped.state == "stopped"


async def test_feedback_is_an_entry_of_the_journal(page: httpx.AsyncClient, tmp_path: Path) -> None:
    await sign_in(page)
    csrf = await csrf_of(page)
    sent = await page.post(
        "/dashboard/turns/t2/feedback", data={"csrf": csrf, "thumbs": "down", "text": " Shorter. "}
    )
    assert sent.headers["location"] == "/dashboard/turns/t2?noted"
    (path,) = segments(tmp_path / "journal")
    (entry,), _, _ = read_entries(path, 0, 1 << 20)
    assert entry.kind == EntryKind.FEEDBACK
    feedback = orjson.loads(entry.payload)
    assert (feedback["turn_id"], feedback["score"], feedback["text"]) == ("t2", -1.0, "Shorter.")
    assert (
        await page.post("/dashboard/turns/t2/feedback", data={"csrf": csrf, "text": " "})
    ).status_code == 400
    long = {"csrf": csrf, "text": "x" * 4_001}
    assert (await page.post("/dashboard/turns/t2/feedback", data=long)).status_code == 413
    assert (
        await page.post("/dashboard/turns/no/feedback", data={"csrf": csrf, "thumbs": "up"})
    ).status_code == 404


async def test_feedback_that_no_version_learns_from_is_not_said_to_count(page: httpx.AsyncClient) -> None:
    await sign_in(page)
    path, csrf = "/dashboard/turns/t1/feedback", await csrf_of(page)
    wish = await page.post(path, data={"csrf": csrf, "text": "Shorter."})
    assert "It counts as soon" in (await page.get(wish.headers["location"])).text
    thumb = await page.post(path, data={"csrf": csrf, "thumbs": "up"})  # of a turn that was trained
    shown = (await page.get(thumb.headers["location"])).text
    assert "No version learns from it" in shown
    assert "It counts as soon" not in shown


async def test_a_link_signs_in_once(page: httpx.AsyncClient, tmp_path: Path) -> None:
    token = SignIn(tmp_path / "sign_in").make_link()
    first = await page.get("/dashboard/sign-in", params={"token": token})
    assert first.status_code == 200
    assert '<meta http-equiv="refresh" content="0; url=/dashboard">' in first.text
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert (await page.get("/dashboard")).status_code == 200
    at_once = await page.get("/dashboard/sign-in", params={"token": token})
    assert (at_once.status_code, at_once.headers["location"]) == (303, "/dashboard")  # signed in already
    page.cookies.clear()
    again = await page.get("/dashboard/sign-in", params={"token": token})
    assert again.status_code == 403
    assert "open</code> makes a new one." in again.text
    assert "set-cookie" not in again.headers
    assert (await page.post("/dashboard/sign-in", data={"key": "patina-wrong"})).status_code == 403


async def test_a_session_ends_with_its_sign_in_its_key_and_its_time(
    page: httpx.AsyncClient,
    dashboard: app.Dashboard,
    keys: KeyFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("store.keys._LOOK_S", 0.0)
    first = tmp_path / "api_key"
    first.write_text("first")
    dashboard._keys = Keyring("first", key_file=first, named=keys)

    async def sign_out() -> None:
        assert (await page.post("/dashboard/sign-out", data={"csrf": await csrf_of(page)})).status_code == 303

    async def revoke() -> None:
        keys.revoke("bob")

    async def add_again_as_owner() -> None:
        keys.revoke("bob")
        keys.add("bob", adapter="", is_owner=True)

    async def rotate() -> None:
        first.write_text("second")

    async def restart_with_another_key() -> None:
        dashboard._keys = Keyring("third", named=keys)

    async def expire() -> None:
        for session in (tmp_path / "sign_in").glob("*.session"):
            os.utime(session, (0, time.time() - COOKIE_S - 1))

    for key, end in (
        ("", sign_out), ("", revoke), ("", expire), ("", add_again_as_owner), ("first", sign_out), ("first", rotate),
        ("second", restart_with_another_key),
    ):  # fmt: skip
        page.cookies.clear()
        if not key:
            for old in keys.read():
                if old.revoked_at is None:
                    keys.revoke(old.name)
        await sign_in(page, key or keys.add("bob", adapter=""))
        cookie = page.cookies[COOKIE]
        assert (await page.get("/dashboard/people")).status_code == 200
        csrf = await csrf_of(page)
        await end()
        page.cookies.clear()
        stolen = {"cookie": f"{COOKIE}={cookie}"}
        assert (await page.get("/dashboard/people", headers=stolen)).status_code == 303, end
        refused = await page.post("/dashboard/training", data={"csrf": csrf, "paused": "1"}, headers=stolen)
        assert refused.status_code == 403, end


async def test_a_cookie_is_of_one_session_and_of_the_page_alone(
    page: httpx.AsyncClient, tmp_path: Path
) -> None:
    reply = await page.post("/dashboard/sign-in", data={"key": OWNER_KEY})
    assert "Path=/dashboard;" in reply.headers["set-cookie"]
    mine = (page.cookies[COOKIE], await csrf_of(page))
    page.cookies.clear()
    await sign_in(page)
    theirs = (page.cookies[COOKIE], await csrf_of(page))
    assert mine[0] != theirs[0]
    form = {"csrf": mine[1], "paused": "1"}
    assert (await page.post("/dashboard/training", data=form)).status_code == 403
    for forged in ("", "x", "../secret", "a" * 10_000, mine[0][:-1]):
        shown = await page.get("/dashboard", headers={"cookie": f"{COOKIE}={forged}"})
        assert shown.status_code == 303, forged


async def test_only_an_owner_looks_at_another_policy_by_a_cookie(
    page: httpx.AsyncClient, keys: KeyFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.keys._LOOK_S", 0.0)
    chosen = {"cookie": f"{app.POLICY_COOKIE}={POLICY}"}
    for name, is_owner in (("eve", False), ("boss", True)):
        key = keys.add(name, is_owner=is_owner)
        shown = await page.get("/dashboard/versions", headers=chosen | {"x-patina-key": key})
        assert (f"{POLICY}@1" in shown.text) is is_owner
        refused = await page.get("/dashboard/versions/1", headers=chosen | {"x-patina-key": key})
        assert refused.status_code == (200 if is_owner else 404)
    none = {"cookie": f"{app.POLICY_COOKIE}=another-model", "x-patina-key": OWNER_KEY}
    assert f"{POLICY}@1" in (await page.get("/dashboard/versions", headers=none)).text


def test_a_key_has_few_sessions_and_pushes_out_its_own_alone(tmp_path: Path) -> None:
    at_door = SignIn(tmp_path)
    owners = at_door.begin("a" * 64, now=1_000.0)
    old = [at_door.begin("b" * 64, now=1_000.0 + n) for n in range(102)]
    known = [at_door.key_of(one, now=2_000.0) for one in old]
    assert known == [None, None, *["b" * 64] * 100]
    assert at_door.key_of(owners, now=1_000.0 + COOKIE_S) == "a" * 64
    assert at_door.key_of(owners, now=1_001.0 + COOKIE_S) is None
    at_door.begin("b" * 64, now=3_000.0 + COOKIE_S)
    assert len(list(tmp_path.glob("*.session"))) == 1  # those that ended are gone


def test_a_link_is_good_once_and_for_ten_minutes(tmp_path: Path) -> None:
    at_door = SignIn(tmp_path)
    cases = {0.0: True, LINK_S: True, LINK_S + 1: False, -1.0: False}
    for after, is_good in cases.items():
        token = at_door.make_link(now=1_000.0)
        assert at_door.use_link(token, now=1_000.0 + after) is is_good
        assert not at_door.use_link(token, now=1_000.0 + after)
    at_door.make_link(now=1_000.0)
    at_door.make_link(now=5_000.0)
    assert len(list(tmp_path.glob("*.link"))) == 1


@pytest.mark.parametrize("target", ["https://evil.test/", "//evil.test", "/v1/models"])
async def test_sign_in_leads_to_our_pages_only(page: httpx.AsyncClient, target: str) -> None:
    reply = await page.post("/dashboard/sign-in", params={"next": target}, data={"key": OWNER_KEY})
    assert reply.headers["location"] == "/dashboard"


async def test_sign_in_leads_to_the_page_that_was_asked_for(page: httpx.AsyncClient) -> None:
    asked = await page.get("/dashboard/conversations", params={"session": "session"})
    reply = await page.post(asked.headers["location"], data={"key": OWNER_KEY})
    assert reply.headers["location"] == "/dashboard/conversations?session=session"


async def test_a_part_of_a_page_asks_for_a_reload_when_nobody_is_signed_in(page: httpx.AsyncClient) -> None:
    reply = await page.get("/dashboard/live", headers={"hx-request": "true"})
    assert (reply.status_code, reply.headers["hx-refresh"]) == (204, "true")


async def test_the_page_number_is_clamped(page: httpx.AsyncClient) -> None:
    await sign_in(page)
    shown = (await page.get("/dashboard/steps", params={"page": "99", "per_page": "1"})).text
    assert "Page 2 of 2 (2 total)" in shown
    assert (
        "Page 1 of 1 (2 total)"
        in (await page.get("/dashboard/steps", params={"page": "-3", "per_page": "0.2e9"})).text
    )
    assert "Page 1 of" in (await page.get("/dashboard/steps", params={"page": "nan"})).text


def test_the_script_of_others_is_the_published_one_with_its_licence() -> None:
    folder = Path(app.__file__).parent / "static"
    note = (folder / "htmx.LICENSE.txt").read_text()
    assert f"sha256 {hashlib.sha256((folder / 'htmx.min.js').read_bytes()).hexdigest()}" in note
    assert "Zero-Clause BSD" in note


async def test_what_is_not_there_is_a_page(page: httpx.AsyncClient) -> None:
    await sign_in(page)
    for path in ("versions/9", f"versions/{10**30}", "turns/none", "conversations?session=none", "nowhere"):
        reply = await page.get(f"/dashboard/{path}")
        assert reply.status_code == 404
        assert "<h1>Not Found</h1>" in reply.text
        assert 'aria-label="Sections"' in reply.text
    assert (await page.get("/dashboard/versions/")).headers["location"] == "/dashboard/versions"
    assert HOSTILE not in (await page.get(f"/dashboard/turns/{HOSTILE[:8]}")).text


async def test_a_new_person_reads_when_a_version_is_trained(page: httpx.AsyncClient, record_url: str) -> None:
    await sign_in(page)
    sentence = "A version is trained after 4 reactions or when a complaint has waited 30 s; how long that takes here is not known yet."
    assert sentence in (await page.get("/dashboard/try")).text
    assert sentence not in (await page.get("/dashboard")).text  # version 1 is live
    record = await Record.open(record_url)
    await record.rollback(POLICY, 0, actor="cli")
    assert sentence in (await page.get("/dashboard")).text
    # A step that runs is on the first page.
    now = time.time()
    detail = {
        "policy": POLICY,
        "step_id": "step3",
        "step_started_at": now,
        "phase": "gate",
        "phase_started_at": now,
    }
    await record.heartbeat(Heartbeat(process="trainer", pid=1, state="training", detail=detail, at=now))
    await record.close()
    shown = (await page.get("/dashboard", headers={"hx-request": "true"})).text
    assert sentence not in shown
    assert "<strong>gate</strong>" in shown


async def test_the_list_of_what_was_forgotten_follows(page: httpx.AsyncClient) -> None:
    await sign_in(page)
    assert 'hx-get="/dashboard/forgotten"' in (await page.get("/dashboard/forgotten")).text
    part = (await page.get("/dashboard/forgotten", headers={"hx-request": "true"})).text
    assert part.strip() == '<p class="soft">Nothing was forgotten here.</p>'


async def test_a_rebound_name_reaches_nothing(page: httpx.AsyncClient) -> None:
    for path in (*PAGES, "/metrics", "/dashboard/sign-in", "/dashboard/static/style.css"):
        headers = {"host": "evil.test:30003", "authorization": f"Bearer {OWNER_KEY}"}
        assert (await page.get(path, headers=headers)).status_code == 400, path


async def test_another_site_signs_no_visitor_in(page: httpx.AsyncClient) -> None:
    refused = await page.post(
        "/dashboard/sign-in", data={"key": OWNER_KEY}, headers={"sec-fetch-site": "cross-site"}
    )
    assert (refused.status_code, refused.headers.get("set-cookie")) == (403, None)


@pytest.mark.parametrize(("scheme", "is_secure"), [("https", True), ("http", False), (None, False)])
async def test_the_cookie_is_for_tls_alone_where_a_reverse_proxy_speaks_it(
    page: httpx.AsyncClient, scheme: str | None, is_secure: bool
) -> None:
    headers = {} if scheme is None else {"x-forwarded-proto": scheme}
    reply = await page.post("/dashboard/sign-in", data={"key": OWNER_KEY}, headers=headers)
    assert ("Secure" in reply.headers["set-cookie"].split("; ")) == is_secure


async def test_without_a_key_a_page_is_shown_at_once_and_its_forms_work(
    page: httpx.AsyncClient, dashboard: app.Dashboard, keys: KeyFile, record_url: str
) -> None:
    dashboard._keys = Keyring("", named=keys)
    led = await page.get("/v1/dashboard?page=9&per_page=1")
    assert (led.status_code, led.headers["location"]) == (303, "/dashboard/steps?page=9&per_page=1")
    shown = await page.get(led.headers["location"])
    assert (shown.status_code, "Page 2 of 2" in shown.text) == (200, True)
    assert "httponly" in shown.headers["set-cookie"].lower()
    token = re.search(r'name="csrf" value="([0-9a-f]{64})"', shown.text)
    assert token is not None
    form = {"csrf": token[1], "version": "0"}
    assert (await page.post("/dashboard/rollback", data=form)).status_code == 303
    page.cookies.clear()
    assert (await page.post("/dashboard/rollback", data=form)).status_code == 403


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"text": ""}, "Write something first."),
        ({"text": " \r\n\t "}, "Write something first."),
        ({}, "Write something first."),
        ({"text": "x" * 4_001}, "The text has 4001 characters; at most 4000 are sent."),
        ({"text": "Hello", "version": "9"}, "There is no version 9 that answers."),
        ({"text": "Hello", "version": "two"}, "There is no version two that answers."),
        ({"text": "Hello", "beside": "9"}, "There is no version 9 that answers."),
    ],
)
async def test_a_question_that_cannot_be_asked_is_refused_with_its_reason_and_the_form_as_it_was(
    page: httpx.AsyncClient, record: Record, fields: dict[str, str], sentence: str
) -> None:
    await record.rollback(POLICY, 0, actor="cli")
    await sign_in(page)
    csrf = await csrf_of(page)
    form = {"csrf": csrf, "version": "1", "beside": "1"} | fields
    reply = await page.post("/dashboard/try", data=form)
    assert reply.status_code == 400
    assert sentence in reply.text
    assert f">{form.get('text', '').strip()}</textarea>" in reply.text
    assert reply.text.count('<option value="1" selected>') == [form["version"], form["beside"]].count("1")


async def test_a_click_sends_the_suggestion_whatever_stands_in_the_text(
    page: httpx.AsyncClient, dashboard: app.Dashboard
) -> None:
    dashboard._gateway = dashboard._chat._gateway = HostileGateway("a reply")  # type: ignore[assignment]  # same methods
    await sign_in(page)
    shown = (await page.get("/dashboard/try")).text
    assert shown.count('name="suggestion"') == 5
    form = {"csrf": await csrf_of(page), "text": "half a sent", "suggestion": QUESTIONS[0], "beside": ""}
    reply = await page.post("/dashboard/try", data=form)
    assert (reply.status_code, reply.headers["location"]) == (303, "/dashboard/try#newest")
    shown = (await page.get("/dashboard/try")).text
    assert f'<div class="text">{QUESTIONS[0]}</div>' in shown
    assert f'<button name="suggestion" value="{COMPLAINTS[0]}">' in shown
    assert f'<button name="suggestion" value="{QUESTIONS[0]}">' not in shown


async def test_a_question_that_the_gateway_does_not_answer_stays_in_the_form(page: httpx.AsyncClient) -> None:
    await sign_in(page)
    # A browser sends two characters for the end of a line.
    text = "a\n" * 1_999 + "b"
    form = {"csrf": await csrf_of(page), "text": text.replace("\n", "\r\n"), "version": "", "beside": ""}
    reply = await page.post("/dashboard/try", data=form)
    assert reply.status_code == 502
    assert f">{text}</textarea>" in reply.text
    assert '<option value="" selected>nothing' in reply.text
