"""Whatever a client, a person or a model writes is text on every page: no markup of theirs, no character that steers."""

import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
import pytest_asyncio

from dashboard.app import Dashboard, create_app
from store.errors import ConfigError
from store.keys import KeyFile
from store.lifecycle import DropReason
from store.record import Record
from store.values import Feedback, ForgetStage, Heartbeat, Selection
from tests.dashboard.conftest import POLICY, fill, sign_in
from tests.making import make_answer, make_turn, make_verdict

MARK = "seen-mark"
TEXTS = {
    "script": "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "end of an attribute": "\" onmouseover=\"alert(1)\" x='' onfocus='alert(2)' autofocus",
    "end of an element": "</textarea></title></code></svg></select></style><svg/onload=alert(1)>",
    "comment": "<!--><script>alert(1)</script>--><![CDATA[<b>]]><?php echo 1 ?>",
    "entities": "&lt;script&gt;alert(1)&lt;/script&gt;&#60;b&#62;&NewLine;",
    "template": "{{ 7 * 7 }}{% include '/etc/passwd' %}{# x #}${7*7}<%= 7 %>",
    "address": "javascript:alert(1)//https://evil.test/?a=1&csrf=2#top",
    "controls": "\x00\x01\x07\x08\x0b\x0c\x1b[2J\x1b]0;title\x07\x7f\x9b31m\r\nset-cookie: a=b",
    "order": "\u202edetrever\u202c \u2066isolated\u2069 \u200emarks\u200f\u061c\u2028\u2029",
    "long": "W" * 6_000,
}
#: What our templates may contain; handlers, frames and styles are not in it.
TAGS = frozenset(
    re.findall(
        r"\w+",
        """html head meta title link script body a header div nav ul ol li span form input button main section article h1 h2 h3 p footer
        svg path circle line polyline text details summary dl dt dd table thead tbody tr th td strong code pre br label textarea select option
        progress figure figcaption img fieldset legend""",
    )
)
OUR_SCRIPTS = ("/dashboard/static/htmx.min.js", "/dashboard/static/page.js")
PAGES = {
    "/dashboard": True, "/dashboard/versions": True, "/dashboard/versions/1": True, "/dashboard/unused": True, "/dashboard/conversations": True,
    "/dashboard/conversations?session=session": True, "/dashboard/turns/t1": True, "/dashboard/turns/branch": True, "/dashboard/turns/t1/tokens": True,
    "/dashboard/turns/t1/forget": False, "/dashboard/forgotten": True, "/dashboard/steps": True, "/dashboard/people": False, "/dashboard/settings": False,
    "/dashboard/live": True, "/dashboard/running": True,
    "/dashboard/try": True,
}  # fmt: skip


class Elements(HTMLParser):
    """Collects what a browser would make of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment", {}))

    unknown_decl = handle_pi = handle_comment


class HostileGateway:
    """Scores and answers with a hostile text."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def post(
        self, path: str, body: Any, *, trains: bool = True
    ) -> tuple[dict[str, Any], dict[bytes, bytes]]:
        if path == "/v1/score":
            scored = {"tokens": [self._text] * 2, "token_ids": [5, 6], "logprobs": [-0.1, -9.0]}
            return {**scored, "model": self._text}, {}
        return {"model": self._text, "choices": [{"message": {"content": self._text}}]}, {}

    async def close(self) -> None: ...


async def fill_more(record: Record, text: str) -> None:
    """Add a branch with tool calls, a neutral turn that was dropped, explicit feedback, and a trainer that reports the text."""
    calls = ({"id": text, "type": "function", "function": {"name": text, "arguments": text}},)
    asked = {"role": "user", "content": text}
    branch = make_turn(
        "branch", [asked], client=text, user=text, parent_turn_id="t1", turn_index=1, created_at=1_004.0
    )
    branch = replace(
        branch,
        completion=replace(branch.completion, text=text, tool_calls=calls),
        next_state=make_answer("t1", "branch", text),
    )  # fmt: skip
    dropped = make_turn(
        "dropped", [asked], text=text, session_id="other", created_at=1_005.0,
        next_state=None,
    )  # fmt: skip
    reaction = make_turn(
        "reaction", [asked, {"role": "assistant", "content": text}, asked], session_id="other", parent_turn_id="dropped", turn_index=1,
        created_at=1_006.0, next_state=make_answer("dropped", "reaction", text),
    )  # fmt: skip
    await record.write_turns([branch, dropped, reaction])
    await record.add_feedback(
        Feedback(
            feedback_id="f", turn_id="branch", score=-1.0, text=text, idempotency_key="k", created_at=1_007.0
        )
    )
    await record.add_verdict(
        make_verdict("branch", hint=text, source=text, detail={"votes": [-1], "why": text})
    )
    await record.add_verdict(make_verdict("dropped", hint=text, source=text))
    claimed = [turn.turn_id for turn in await record.claim(POLICY, 8, worker="w", lease_s=60)]
    assert "dropped" in claimed
    await record.drop(["dropped"], DropReason.NO_SIGNAL, worker="w", detail=text)
    now = time.time()
    detail = {
        "policy": POLICY, "step_id": text, "step_started_at": now - 9, "phase": text, "phase_started_at": now - 1, "last_error": text,
        "notes": [text], "dropped": {text: 1},
    }  # fmt: skip
    await record.heartbeat(Heartbeat(process="trainer", pid=1, state=text, detail=detail, at=now))
    backend = {"ready": True, "load_s": {f"{POLICY}@1": 0.5}, "attested": {f"{POLICY}@1": text}}
    await record.heartbeat(
        Heartbeat(process="proxy", pid=1, state="running", detail={"backend": backend}, at=now)
    )


@pytest_asyncio.fixture
async def closing(dashboard: Dashboard) -> AsyncIterator[Dashboard]:
    yield dashboard
    await dashboard.close()


@pytest.mark.parametrize("name", TEXTS)
async def test_hostile_text_is_inert_on_every_page(record: Record, closing: Dashboard, name: str) -> None:
    dashboard, text = closing, f"{MARK} {TEXTS[name]}"
    await fill(record, text)
    await fill_more(record, text)
    gateway: Any = HostileGateway(text)
    dashboard._gateway = dashboard._chat._gateway = gateway
    assert await dashboard._chat.send(text[:4_000], "", "0") == ""
    transport = httpx.ASGITransport(create_app(dashboard))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as page:
        await sign_in(page)
        job_id = await record.ask_to_forget(Selection(turn=text), key_name="owner")
        await record.change_forget_job(job_id, stage=ForgetStage.ASKED, waits=text)
        for path, shows_it in PAGES.items():
            shown = await page.get(path)
            assert shown.status_code == 200, path
            assert not re.search(
                "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]", shown.text
            ), path
            for tag, attributes in Elements(shown.text).tags:
                assert tag in TAGS, (path, tag)
                assert not [one for one in attributes if one.startswith("on") or one == "style"], (path, tag)
                if tag == "script":
                    assert attributes.pop("src") in OUR_SCRIPTS
                    assert attributes == {"defer": None}
                for address in ("href", "src", "action"):
                    assert (attributes.get(address) or "/").startswith(
                        ("/dashboard", "/v1/", "#")
                    ) or address not in attributes, (path, attributes)
            assert (MARK in shown.text) is shows_it, path
            assert "49" not in re.findall(r"seen-mark (\d+)", shown.text)


def test_a_key_has_no_hostile_name(keys: KeyFile) -> None:
    for name, text in TEXTS.items():
        with pytest.raises(ConfigError, match="cannot be the name of a key"):
            keys.add(text)
        assert keys.read() == (), name
