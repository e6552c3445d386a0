"""No answer to one key depends on another key's rows.

Two homes have the same rows of ann. In one of them bob did everything that ann did, with the same words and with others. Each route of the
gateway and each page is asked by ann in both, with ids of ann, of bob and of no person: the answers are the same, times and ids apart. The requests
are made from the tables of routes, and bob's rows fill every table of the record: a new route or table is covered by itself.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
import sqlite3
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from starlette.routing import Route

from cli.forgetting import Forgetter
from dashboard.app import Dashboard, create_app
from dashboard.sign_in import COOKIE, SignIn
from proxy.endpoints import ENDPOINTS
from store import schema
from store.journal import JournalWriter
from store.keys import KeyFile, Keyring
from store.record import Record
from store.record_handle import RecordHandle
from store.settings import read_settings
from store.values import AdapterState, PreviewReply, Selection, StepInputs, StepReport, StepRole
from tests.proxy.conftest import KEY, Gateway, run_gateway_at, score
from tests.proxy.test_adapters import make_adapter
from tests.proxy.upstream import Upstream, running
from tests.waiting import until

#: Tables without rows of one key: of processes, and of a GPU that two of them share.
_OF_NO_KEY = {"heartbeats", "gpu_leases", "journal_offsets", "forgotten_turns"}
LINE = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
SENTENCE = "My sister's number is 0151 23456789, keep it to yourself."

#: What differs in any two runs: ids, random tokens, times. Each id becomes its place among those of the answer.
_IDS = re.compile(
    r"(?:turn|chatcmpl|resp|msg|conv|req|fb|call|rs|fc|item|link|session|ftevent|reply|event)[-_][0-9a-f-]{3,}(?:_[0-9]+)*|\b[0-9a-f]{16,}\b|[\w-]{43}|(?<=>)[0-9a-f]{8}(?=</a>)|\d{8}-\d{6}-[0-9a-f]{8}"
)
_TIMES = re.compile(
    r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|\+00:00)?|\b\d\d-\d\d \d\d:\d\d\b|\b1[6-9]\d{8}(?:\.\d+)?\b|\b\d+ (?:s|min|h|d)(?: ago)?\b"
    r'|"(?:age_s|lag_s|uptime_s|latency_ms|duration_ms|timing_ms)":[\d.e-]+'
)
_PORT = re.compile(r"127\.0\.0\.1:\d+")
_WISH = re.compile(r'(name="wish" value=)"\d+"')


def comparable(reply: httpx.Response) -> tuple[int, list[tuple[str, str]], str]:
    """Return an answer without what differs in any two runs."""
    text = reply.text
    if reply.headers.get("content-type") == "application/zip":  # which holds the time
        with zipfile.ZipFile(io.BytesIO(reply.content)) as archive:
            text = str([(one.filename, one.CRC) for one in archive.infolist()])
    headers = sorted((name, value) for name, value in reply.headers.items() if name != "content-length")
    whole = _PORT.sub("127.0.0.1", json.dumps([headers, text]))
    order: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return order.setdefault(found[0], f"<id {len(order)}>")

    whole = _WISH.sub(r"\1<wish>", _TIMES.sub("<time>", _IDS.sub(number, whole)))
    return reply.status_code, *json.loads(whole)


@dataclass
class Home:
    """A home with a gateway on its record."""

    folder: Path
    gateway: Gateway
    keys: dict[str, str]
    http: httpx.Client

    def ask(self, who: str, method: str, path: str, body: Any = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys[who]}"}
        return self.http.request(method, self.gateway.url + path, headers=headers, json=body)

    def wait_live(self, who: str) -> None:
        until(
            lambda: self.ask(who, "GET", "/v1/models/tiny").json()["metadata"]["version"] == 1,
            "version 1 is live",
        )


@contextmanager
def home_at(folder: Path, keys: dict[str, str], *, count: int = 0) -> Iterator[Home]:
    ring = Keyring(KEY, named=KeyFile(folder / "keys.json"))
    upstream = Upstream(count=count)  # so that no two completions have one id
    with (
        running(upstream) as url,
        run_gateway_at(url, upstream, folder / "patina.db", keys=ring) as gateway,
        httpx.Client(verify=False, timeout=60) as http,
    ):
        yield Home(folder, gateway, keys, http)


def live(home: Home, who: str, *, words: Sequence[str] = ("Where is Oslo?",)) -> dict[str, str]:
    """Do everything that a key can do, and train a version of its policy; returns ids of what came of it, by kind."""

    def post(path: str, **body: Any) -> Any:
        reply = home.ask(who, "POST", path, body)
        assert reply.status_code < 300, (path, reply.text)
        return reply

    text = {"text": "In Norway.", "finish": "stop"}
    turn = ""
    for word in words:
        messages = [{"role": "user", "content": word}]
        first = post(
            "/v1/chat/completions", model="tiny", messages=messages, scripted=text, store=True,
            metadata={"a": "b"},
        )  # fmt: skip
        turn = first.headers["x-patina-turn"]
        messages += [
            first.json()["choices"][0]["message"],
            {"role": "user", "content": "Always answer shorter, please."},
        ]
        post("/v1/chat/completions", model="tiny", messages=messages, scripted=text)
    post(
        "/v1/chat/completions", model="tiny", messages=[{"role": "user", "content": SENTENCE}], scripted=text
    )
    response = post("/v1/responses", model="tiny", input=words[0], scripted=text).json()["id"]
    message = post("/v1/messages", model="tiny", max_tokens=9, messages=messages[:1], scripted=text).json()[
        "id"
    ]
    items = [{"type": "message", "role": "user", "content": SENTENCE}]
    conversation = post("/v1/conversations", items=items).json()["id"]
    item = home.ask(who, "GET", f"/v1/conversations/{conversation}/items").json()["data"][0]["id"]
    post("/v1/responses", model="tiny", input=words[0], conversation=conversation, scripted=text)
    home.gateway.settle()
    post("/v1/feedback", turn_id=turn, text="Too long.", thumbs="down")
    post("/v1/lora/init", lora_id=f"{who}/assistant")
    batch = {"lora_id": f"{who}/assistant", "response_id": first.json()["id"], "feedback": "Shorter."}
    request = post("/v1/feedback", requests=[batch]).json()["request_id"]
    file = home.http.post(
        f"{home.gateway.url}/v1/files",
        headers={"authorization": f"Bearer {home.keys[who]}"},
        data={"purpose": "fine-tune"},
        files={"file": ("own.jsonl", LINE)},
    ).json()["id"]
    policy = "tiny" if who == "default" else f"tiny.{who}"
    if who != "default":
        post("/v1/fine_tuning/jobs", model="tiny", training_file=file)
    home.gateway.in_record(lambda record: _train(record, policy, home.folder))
    home.wait_live(who)
    post(f"/v1/chat/completions/{first.json()['id']}", metadata={"note": who})
    completion = first.json()["id"]
    session = home.gateway.in_record(lambda record: record.story(turn))["session_id"]
    return {
        "turn": turn, "completion": completion, "response": response, "message": message, "conversation": conversation, "item": item,
        "request": request, "policy": policy, "job": f"ftjob-{policy}", "session": session, "lora": f"{who}/assistant", "file": file,
    }  # fmt: skip


async def _train(record: Record, policy: str, folder: Path) -> None:
    await score(record)
    turns = await record.claim(policy, 8, worker="w", lease_s=60)
    assert turns
    now = time.time()

    def report(name: str, version: int | None, error: str | None) -> StepReport:
        return StepReport(
            step_id=f"{policy}-{name}", policy=policy, method="combine", started_at=now, finished_at=now, version=version, error=error,
            metrics={"turns": len(turns), "loss": 0.5}, inputs=StepInputs(turns={StepRole.BATCH: ((turns[0].turn_id, 1),)}, settings={}),
        )  # fmt: skip

    first = make_adapter(policy, 1, folder, created_at=now)
    await record.publish(first, [turns[0].turn_id], report("1", 1, None), worker="w")
    await record.write_step(report("failed", None, f"{policy} has no memory"))
    tried = make_adapter(policy, 2, folder, created_at=now)
    await record.publish(
        tried, [one.turn_id for one in turns[1:2]], report("2", 2, None), worker="w", canary_share=0.5
    )
    (release,) = await record.canary_releases(policy)
    await record.try_version(policy, 2, share=0.5) if release.share != 0.5 else None
    reply = PreviewReply(turn_id=turns[0].turn_id, live="Oslo.", new="In Norway.", change=1.0)
    await record.add_preview(policy, 2, [reply])
    refused = make_adapter(policy, 3, folder, created_at=now)
    assert refused.state is AdapterState.PUBLISHED
    await record.pin(policy, 1, stays=True)
    await record.set_paused(True, policy=policy)


@dataclass(frozen=True)
class Probe:
    method: str
    path: str
    body: Any = field(default=None, compare=False)


def gateway_probes(ids: Sequence[dict[str, str]]) -> list[Probe]:
    """Return requests for every endpoint: with no id, and with ids of ann, of bob and of no person in path, query and body."""
    found = []
    for endpoint in ENDPOINTS:
        methods = ("GET", "POST", "DELETE") if endpoint.method == "any" else (endpoint.method,)
        stem = endpoint.path.rstrip("*").rstrip("/") or "/"
        for own in ids:
            kinds, parts = _TAKES.get(endpoint.path, (tuple(own), ("",)))
            paths = [stem]
            if endpoint.path.endswith("*"):
                paths += [
                    f"{stem}/{own[kind]}{part}".replace("<item>", own["item"])
                    for kind in kinds
                    for part in parts
                ]
            if endpoint.path == "/v1/lora*":
                paths = [
                    "/v1/lora/init",
                    *(f"/v1/lora{part}?lora_id={own[kind]}" for kind in kinds for part in ("", "/export")),
                ]
            paths += [
                f"{stem}?after={own[kind]}&prefix={own[kind]}" for kind in ("completion", "lora", "job")
            ]
            for method in methods:
                found += [Probe(method, path, _body(own) if method == "POST" else None) for path in paths]
    # What takes something away comes last; a rollback is seen by requests a moment later.
    return sorted(
        dict.fromkeys(found),
        key=lambda one: (("GET", "POST", "DELETE").index(one.method), one.path.endswith("/rollback")),
    )


#: The kinds of ids that a path takes, and its parts behind one; a path that is not here gets every kind.
_TAKES = {
    "/v1/chat/completions/*": (("completion", "turn"), ("", "/messages")),
    "/v1/fine_tuning/jobs*": (("job",), ("", "/events", "/checkpoints", "/pause", "/resume", "/rollback")),
    "/v1/files*": (("file",), ("", "/content")),
    "/v1/responses/*": (("response", "turn"), ("", "/input_items")),
    "/v1/conversations*": (("conversation",), ("", "/items", "/items/<item>")),
    "/v1/lora*": (("lora", "policy"), ("",)),
    "/v1/models/*": (("policy",), ("", "@0", "@1", "@2")),
}  # fmt: skip


def _body(own: dict[str, str]) -> dict[str, Any]:
    """Return a body that each endpoint takes what it knows of, with the ids of one person."""
    return {
        "model": own["policy"], "messages": [{"role": "user", "content": "Where is Oslo?"}], "input": "Where is Oslo?", "max_tokens": 9,
        "prompt": "Where is Oslo?", "completion": "In Norway.", "lora_id": own["policy"], "turn_id": own["turn"], "text": f"As {own['turn']}.",
        "scripted": {"text": "In Norway."}, "conversation": own["conversation"], "training_file": own["file"], "metadata": {"a": "b"},
    }  # fmt: skip


UNKNOWN = {
    "turn": "turn_0123456789abcdef", "completion": "chatcmpl-0", "response": "resp_0", "message": "msg_0", "conversation": "conv_0", "item": "msg_0",
    "request": "req_0", "policy": "tiny.unknown", "job": "ftjob-tiny.unknown", "session": "unknown", "lora": "unknown/assistant", "file": "file-unknown",
}  # fmt: skip


async def page_answers(home: Home, ids: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Ask for every page and take every action, as ann's browser."""
    settings = read_settings({"home": home.folder, "model_name": "tiny"})
    settings.dump(home.folder / "settings.json")
    ring = Keyring(KEY, named=KeyFile(home.folder / "keys.json"))
    sign_in = SignIn(home.folder / "sign_in")
    dashboard = Dashboard(
        settings=settings, record=RecordHandle(lambda: Record.open(home.gateway.record_url)), keys=ring, sign_in=sign_in,
        journal=JournalWriter(home.folder / "journal", "dashboard"), gateway_url=home.gateway.url, first_key=KEY,
    )  # fmt: skip
    assert settings.policy == "tiny"
    dashboard._status.wait_s = 60.0  # a busy machine counts slowly
    found: dict[str, Any] = {}
    beats = asyncio.create_task(dashboard.beat())
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(dashboard)), base_url="http://localhost"
    ) as browser:
        holder = ring.holder(home.keys["ann"].encode())
        assert holder is not None
        browser.cookies.set(COOKIE, sign_in.begin(holder.digest))
        csrf = re.findall(r'name="csrf" value="(\w+)"', (await browser.get("/dashboard")).text)[0]
        routes = [one for one in dashboard.routes() if isinstance(one, Route)]
        for route in sorted(routes, key=lambda one: "POST" in (one.methods or ())):
            for own in ids.values():
                path = route.path.replace("{turn_id}", own["turn"]).replace(
                    "{number:int}", "2" if own is UNKNOWN else "1"
                )
                query = {"session": own["session"]} if path.endswith("conversations") else {}
                for form in ({}, {"hx-request": "true"}):
                    if "POST" not in (route.methods or ()):
                        found[f"{route.path} {own['policy']} {form}"] = await browser.get(
                            path, params=query, headers=form
                        )
                if "POST" in (route.methods or ()) and route.path != "/dashboard/sign-in":
                    for fields in (
                        {"version": "1"},
                        {
                            "version": "9",
                            "wish": "1",
                            "policy": own["policy"],
                            "text": "Shorter.",
                            "paused": "1",
                        },
                    ):
                        if route.path.endswith(("/sign-out", "/forget")):
                            continue
                        found[f"POST {route.path} {own['policy']} {fields}"] = await browser.post(
                            path, data={"csrf": csrf, **fields}
                        )
        # A guess of bob's sentence is forgotten as any other.
        turn = home.ask(
            "ann",
            "POST",
            "/v1/chat/completions",
            {
                "model": "tiny",
                "messages": [{"role": "user", "content": SENTENCE}],
                "scripted": {"text": "Noted."},
            },
        )
        await asyncio.to_thread(home.gateway.settle)
        path = f"/dashboard/turns/{turn.headers['x-patina-turn']}/forget"
        found["preview"] = await browser.get(path)
        found["forget"] = await browser.post(path, data={"csrf": csrf})
        found["under way"] = await browser.get("/dashboard/forgotten")
        record = await Record.open(home.gateway.record_url)
        served = settings.model_copy(update={"database": home.gateway.record_url})
        assert await Forgetter(record, served).run(patience_s=60.0)
        await record.close()
        found["forgotten"] = await browser.get("/dashboard/forgotten")
    beats.cancel()
    await asyncio.gather(beats, return_exceptions=True)
    await dashboard.close()
    return {name: comparable(reply) for name, reply in found.items()}


def differing_tables(*folders: Path) -> set[str]:
    """Return the tables whose rows are not the same in two records."""
    rows = []
    for folder in folders:
        with closing(sqlite3.connect(folder / "patina.db")) as database:
            rows.append(
                {
                    name: database.execute(f"SELECT * FROM {name}").fetchall()
                    for name in schema.metadata.tables
                }
            )
    return {name for name in rows[0] if rows[0][name] != rows[1][name]}


def test_no_answer_to_one_key_depends_on_the_rows_of_another(empty_record: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "alone", tmp_path / "beside"]
    folders[0].mkdir()
    shutil.copy(empty_record, folders[0] / "patina.db")
    file = KeyFile(folders[0] / "keys.json")
    keys = {name: file.add(name) for name in ("ann", "bob")} | {"default": KEY}
    with home_at(folders[0], keys) as home:
        ids = {"ann": live(home, "ann")}
    shutil.copytree(folders[0], folders[1])
    with home_at(folders[0], keys, count=1_000) as alone, home_at(folders[1], keys, count=100) as beside:
        ids["bob"] = live(beside, "bob", words=("Where is Oslo?", "Where is Bergen?"))
        live(beside, "default")
        ids["unknown"] = UNKNOWN
        turn = Selection(turn="another")
        beside.gateway.in_record(lambda record: record.ask_to_forget(turn, key_name="bob"))
        assert differing_tables(*folders) >= set(schema.metadata.tables) - _OF_NO_KEY
        for home in (alone, beside):
            home.wait_live("ann")
        answers = [gateway_answers(home, gateway_probes([*ids.values()])) for home in (alone, beside)]
        pages = [asyncio.run(page_answers(home, ids)) for home in (alone, beside)]
    assert differing(*answers) == {}
    assert differing(*pages) == {}


def gateway_answers(home: Home, probes: Sequence[Probe]) -> dict[str, Any]:
    found = {}
    for probe in probes:
        reply = home.ask("ann", probe.method, probe.path, probe.body)
        found[f"{probe.method} {probe.path}"] = comparable(reply)
    return found


def differing(alone: dict[str, Any], beside: dict[str, Any]) -> dict[str, Any]:
    assert len(alone) == len(beside) > 50
    return {name: (one, beside[name]) for name, one in alone.items() if one != beside[name]}
