"""Through the proxy with the openai SDK and with plain sockets: what the client sees, and what the record says."""

from __future__ import annotations

import json
import socket
import sqlite3
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import openai
import pytest

from migrations import upgrade
from store.errors import UpstreamConnectTimeout
from store.journal import EntryKind, JournalWriter, read_entries, segments
from tests.proxy.conftest import KEY, Gateway, run_gateway, run_gateway_at
from tests.proxy.upstream import logprob, running, token_id, tokens_of
from wire.captured_exchange import load_exchange

WEATHER = [
    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}},
    {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
]


def post(url: str, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Send a POST and return (status, headers, body), whatever the status."""
    sent = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    sent.update({name.replace("_", "-"): value for name, value in headers.items()})
    request = urllib.request.Request(url, data=body, headers=sent, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, {k.lower(): v for k, v in response.headers.items()}, response.read()
    except HTTPError as error:
        with error:
            return error.code, {k.lower(): v for k, v in error.headers.items()}, error.read()


def get(url: str) -> tuple[int, Any]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {KEY}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def chat(**more: Any) -> bytes:
    return json.dumps(
        {"model": "tiny", "messages": [{"role": "user", "content": "Where is Oslo?"}], **more}
    ).encode()


# ------------------------------------------------------------------ faithful


@pytest.mark.parametrize(
    "body",
    [
        chat(scripted={"text": "In Norway — så klart"}),
        chat(scripted={"text": "In Norway"}, stream=True),
        chat(scripted={"text": "In Norway"}, stream=True, stream_options={"include_usage": True}),
        chat(scripted={"text": "In Norway"}, logprobs=True),
        chat(scripted={"text": "In Norway"}, logprobs=True, return_token_ids=True, stream=True),
        chat(scripted={"text": "In Norway", "reasoning": "hm"}, n=3),
        chat(scripted={"text": "In Norway", "reasoning": "hm"}, n=2, stream=True),
        chat(scripted={"text": "", "tool_calls": WEATHER}, stream=True),
        chat(scripted={"text": "", "tool_calls": WEATHER}),
        chat(scripted={"status": 429, "headers": {"retry-after": "3", "x-ratelimit": "0"}, "body": '{"error": "slow"}'}),
        chat(scripted={"status": 400, "headers": {"content-type": "application/json"}, "body": '{"error":{"message":"bad"}}'}),
        chat(scripted={"status": 500, "body": "not even json"}),
        b'[{"no": "object"}]',
        b'{"model": "tiny", "messages": [{"role": "user", "content": ' + b"[" * 200 + b"]" * 200 + b"}]}",
        b'{"model": "tiny", "messages": [{"role": "user", "content": ' + b"[" * 400 + b"]" * 400 + b"}]}",
    ],
)  # fmt: skip
def test_the_client_sees_the_very_bytes_of_the_backend(gateway: Gateway, body: bytes) -> None:
    direct = post(f"{gateway.upstream_url}/v1/chat/completions", body)
    gateway.upstream.count = 0 if not direct[2].count(b'"chatcmpl-1"') else gateway.upstream.count - 1
    proxied = post(f"{gateway.url}/v1/chat/completions", body)
    turn = proxied[1].pop("x-patina-turn", None)
    assert proxied[1].pop("x-patina-version", None) == (None if turn is None else "tiny@0")
    if "x-request-id" not in direct[1]:
        name = proxied[1].pop("x-request-id")
        assert name == turn or (turn is None and name.startswith("req_"))
    assert proxied == direct
    is_chat = body.startswith(b'{"model": "tiny", "messages": [{"role": "user", "content": "Where')
    assert (turn is not None) == (is_chat or (b"[[" in body and len(body) < 600))


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "tiny", "messages": ',
        b'{"model": "tiny", "messages": [{"role": "user", "content": ' + b"[" * 90000 + b"]" * 90000 + b"}]}",
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\xff"}]}',
    ],
)  # fmt: skip
def test_a_malformed_body_gets_the_backends_words_in_openais_shape(gateway: Gateway, body: bytes) -> None:
    status, _, direct = post(f"{gateway.upstream_url}/v1/chat/completions", body)
    proxied = post(f"{gateway.url}/v1/chat/completions", body)
    error = json.loads(proxied[2])["error"]
    assert (proxied[0], error["message"]) == (status, json.loads(direct)["error"]["message"])
    assert (error["type"], error["code"]) == ("invalid_request_error", None)
    # Half a character can be read, and another backend may accept it: such a request is recorded.
    assert ("x-patina-turn" in proxied[1]) is (b"\xff" in body)


def test_other_paths_pass_as_bytes_in_both_directions(gateway: Gateway) -> None:
    status, headers, body = post(
        f"{gateway.url}/v1/audio/x%20y?a=1&b=%2F", b"\x00\xff raw", Content_Type="multipart/x", X_Api_Key=KEY
    )
    assert (status, body) == (207, b"first \x00\xff raw last")
    assert headers["x-odd"] == "yes"
    assert "x-hop" not in headers
    seen = gateway.upstream.seen[-1]
    assert seen.path == "/v1/audio/x%20y?a=1&b=%2F"
    assert seen.header("content-type") == "multipart/x"
    assert seen.header("authorization") is None
    assert seen.header("x-api-key") is None


def test_clients_cannot_administer_the_backend(gateway: Gateway) -> None:
    for path in ("load_lora_adapter", "unload_lora_adapter", "%6coad_lora_adapter", "x/../load_lora_adapter"):
        assert post(f"{gateway.url}/v1/{path}", b'{"lora_name":"x","lora_path":"/"}')[0] == 404
    assert gateway.upstream.admin == []
    seen = len(gateway.upstream.seen)
    # what vLLM has at its root where it may sleep; only what is below /v1/ is anybody's
    for path in (
        "sleep?level=2",
        "wake_up",
        "collective_rpc",
        "v1/../sleep",
        "v1/%2e%2e/collective_rpc",
        "//sleep",
    ):
        assert post(f"{gateway.url}/{path}", b"{}")[0] == 404
    assert len(gateway.upstream.seen) == seen


def test_the_sdk_streams_and_does_not(gateway: Gateway) -> None:
    whole = gateway.ask("Where is Oslo?", extra_body={"scripted": {"text": "In Norway"}})
    assert whole.choices[0].message.content == "In Norway"
    assert whole.choices[0].logprobs is None
    assert whole.model == "tiny"
    chunks = list(gateway.ask("Where is Rome?", stream=True, extra_body={"scripted": {"text": "In Italy"}}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "In Italy"
    assert all(c.usage is None for c in chunks)
    for row, text in zip(gateway.rows(2), ("In Norway", "In Italy"), strict=True):
        tokens = [*tokens_of(text), "<end>"]
        assert row["completion"] == text
        assert row["completion_token_ids"] == [token_id(t) for t in tokens]
        assert row["sampling_logprobs"] == [logprob(i) for i in range(len(tokens))]
        assert (row["stage"], row["kind"], row["relation"], row["finish_reason"]) == (
            "recorded",
            "main",
            "first",
            "stop",
        )


def test_a_conversation_with_tools_links_turn_by_turn(gateway: Gateway) -> None:
    history: list[dict[str, Any]] = [{"role": "system", "content": "It is 12:00."}]
    first = gateway.ask(
        "Weather?", history, stream=False, extra_body={"scripted": {"text": "", "tool_calls": WEATHER}}
    )
    message = first.choices[0].message
    history += [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "tool_calls": [c.model_dump() for c in message.tool_calls]},
        {"role": "tool", "tool_call_id": "c2", "content": "3 C"},
        {"role": "tool", "tool_call_id": "c1", "content": "12 C"},
    ]
    history[0] = {"role": "system", "content": "It is 12:01."}
    second = gateway.client.chat.completions.create(model="tiny", messages=history)  # type: ignore[arg-type]  # plain dicts
    gateway.ask(
        "Thanks!",
        [*history, {"role": "assistant", "content": second.choices[0].message.content}],
        stream=True,
    ).close()
    rows = gateway.rows(3)
    assert [r["relation"] for r in rows] == ["first", "next", "next"]
    assert [r["parent_turn_id"] for r in rows] == [None, rows[0]["turn_id"], rows[1]["turn_id"]]
    assert len({r["session_id"] for r in rows}) == 1
    assert (rows[0]["next_role"], rows[0]["next_text"]) == ("tool", "3 C\n12 C")
    assert (rows[1]["next_role"], rows[1]["next_text"]) == ("user", "Thanks!")
    assert [c["function"]["name"] for c in rows[0]["tool_calls"]] == ["weather", "weather"]
    assert rows[0]["messages"][0]["content"] == "It is 12:00."


def test_two_interleaved_conversations_stay_apart(gateway: Gateway) -> None:
    histories: dict[str, list[dict[str, Any]]] = {"CSV": [], "Lisbon": []}
    for step in range(3):
        for topic, history in histories.items():
            text = f"{topic}, question {step}"
            reply = gateway.ask(text, history)
            history += [
                {"role": "user", "content": text},
                {"role": "assistant", "content": reply.choices[0].message.content},
            ]
    rows = gateway.rows(6)
    for topic in histories:
        entry = [r for r in rows if topic in r["messages"][0]["content"]]
        assert [r["turn_index"] for r in entry] == [0, 1, 2]
        assert len({r["session_id"] for r in entry}) == 1
        assert [r["next_text"] for r in entry] == [f"{topic}, question 1", f"{topic}, question 2", None]
    assert len({r["session_id"] for r in rows}) == 2


def test_of_several_choices_the_one_that_is_continued_links(gateway: Gateway) -> None:
    reply = gateway.ask("A name for a cat?", n=3, extra_body={"scripted": {"text": "Mia"}})
    second = reply.choices[1].message.content
    history = [{"role": "user", "content": "A name for a cat?"}, {"role": "assistant", "content": second}]
    gateway.ask("Why that one?", history)
    rows = gateway.rows(4)
    base = rows[0]["turn_id"]
    assert [r["turn_id"] for r in rows[:3]] == [base, f"{base}.1", f"{base}.2"]
    assert len({r["session_id"] for r in rows}) == 1
    assert rows[3]["parent_turn_id"] == f"{base}.1"
    assert [r["next_text"] for r in rows[:3]] == [None, "Why that one?", None]
    assert all(len(r["completion_token_ids"]) == len(r["sampling_logprobs"]) == 2 for r in rows[:3])


def test_asking_the_same_again_is_an_implicit_negative(gateway: Gateway) -> None:
    history = [
        {"role": "user", "content": "Hello, I am Ann"},
        {"role": "assistant", "content": "Answer 1 of tiny to Hello, I am Ann"},
    ]
    gateway.ask("Hello, I am Ann")
    gateway.ask("Who am I?", history)
    time.sleep(1.1)  # a person reads the reply first
    again = gateway.ask("Who am I?", history).choices[0].message.content
    gateway.rows(3)
    gateway.ask(
        "Right.",
        [*history, {"role": "user", "content": "Who am I?"}, {"role": "assistant", "content": again}],
    )
    rows = gateway.rows(4)
    assert [r["relation"] for r in rows] == ["first", "next", "retry", "next"]
    assert rows[2]["parent_turn_id"] == rows[0]["turn_id"]
    # Judged once the newer reply is continued.
    assert (rows[1]["next_role"], rows[1]["next_text"], rows[1]["stage"]) == ("user", "", "answered")


def test_asking_the_same_again_at_once_is_a_sample(gateway: Gateway) -> None:
    for _ in range(2):
        gateway.ask("Who are you?")
    rows = gateway.rows(2)
    assert "retry" not in {r["relation"] for r in rows}
    assert {r["next_role"] for r in rows} == {None}


def test_samples_of_one_prompt_are_no_implicit_negatives(gateway: Gateway) -> None:
    requests: list[dict[str, Any]] = [{"seed": 1}, {"seed": 2}, {"n": 2}, {"n": 2}]
    for options in requests:
        gateway.ask("Write one sentence about the sea, please", **options)
    rows = gateway.rows(6)
    assert [r["relation"] for r in rows] == ["first", "branch", "first", "first", "branch", "branch"]
    assert len({r["session_id"] for r in rows}) == 2
    assert {r["next_role"] for r in rows} == {None}


def test_explicit_words_win(gateway: Gateway) -> None:
    def turn(text: str, **headers: str) -> None:
        gateway.ask(text, extra_headers={k.replace("_", "-"): v for k, v in headers.items()})

    turn("one", X_Session_Id="s-1")
    turn("two", X_Session_Id="s-1", X_Session_Done="1")
    turn("Generate a title for this chat", X_Turn_Type="main")
    turn("three", X_Turn_Type="side")
    turn("four", X_Patina_Train="off")
    gateway.ask("five", extra_body={"metadata": {"patina_train": "off"}, "store": False})
    gateway.ask("six", extra_body={"store": False})
    rows = gateway.rows(7)
    assert [r["session_id"] for r in rows[:2]] == ["s-1", "s-1"]
    assert (rows[0]["next_text"], rows[1]["drop_reason"]) == ("two", "no_next_state")
    assert (rows[2]["kind"], rows[3]["kind"], rows[3]["drop_reason"]) == ("main", "side", "side_turn")
    assert [r["drop_reason"] for r in rows[4:]] == ["opted_out", "opted_out", None]


def test_a_session_may_be_named_in_the_base_url(gateway: Gateway) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/s/mine/v1", api_key=KEY) as client:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}])
    assert gateway.rows(1)[0]["session_id"] == "mine"
    assert gateway.upstream.seen[-1].path == "/v1/chat/completions"


# --------------------------------------------------------------------- exact


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ({"drop_logprobs": True}, "no_tokens"),
        ({"drop_ids": True}, "no_tokens"),
        ({"lose_logprob": True}, "token_mismatch"),
        ({"usage_off_by": 1}, "token_mismatch"),
    ],
)
def test_tokens_that_do_not_add_up_are_recorded_with_their_reason(
    gateway: Gateway, script: Any, reason: str, stream: bool
) -> None:
    reply = gateway.ask(
        "Where is Oslo?", stream=stream, extra_body={"scripted": {"text": "In Norway", **script}}
    )
    if stream:
        assert "".join(c.choices[0].delta.content or "" for c in reply) == "In Norway"
    (row,) = gateway.rows(1)
    assert (row["completion"], row["stage"], row["drop_reason"]) == ("In Norway", "dropped", reason)


def test_the_parameters_a_turn_was_sampled_with_are_recorded(gateway: Gateway) -> None:
    gateway.ask("x", temperature=0.25, user="ann")

    gateway.rows(1)
    with sqlite3.connect(gateway.record_url.split("///")[1]) as database:
        row = database.execute('SELECT temperature, logprob_mode, "user", status_code FROM turns').fetchone()
    database.close()
    assert row == (0.25, "raw_logprobs", "ann", 200)


# ------------------------------------------------------------------- durable


def journalled(gateway: Gateway) -> list[str]:
    """Return the ids of the turns in the journal's segments."""
    found = []
    for path in segments(gateway.journal):
        entries, _, _ = read_entries(path, 0, 1 << 30)
        found += [load_exchange(e.payload).turn_id for e in entries if e.kind == EntryKind.EXCHANGE]
    return found


@pytest.mark.parametrize("sync", ["none", "group"])
def test_the_journal_has_the_turn_when_the_client_sees_the_end(
    upstream: Any, record_file: Path, sync: str
) -> None:
    folder = record_file.parent / "journal"
    journal = JournalWriter(folder, "gateway", sync=sync)
    with running(upstream) as url, run_gateway_at(url, upstream, record_file, journal=journal) as gateway:
        for stream in (False, True):
            response = gateway.client.chat.completions.with_raw_response.create(
                model="tiny", messages=[{"role": "user", "content": f"stream {stream}"}], stream=stream
            )
            if stream:
                list(response.parse())
            assert response.headers["x-patina-turn"] in journalled(gateway)
        assert [row["messages"][0]["content"] for row in gateway.rows(2)] == ["stream False", "stream True"]


def test_a_locked_record_costs_no_reply_and_no_turn(gateway: Gateway) -> None:
    gateway.ask("before")
    gateway.rows(1)
    lock = sqlite3.connect(gateway.record_url.split("///")[1], isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    try:
        for i in range(3):
            assert gateway.ask(f"locked {i}").choices[0].message.content
        assert len(journalled(gateway)) >= 3
    finally:
        lock.execute("ROLLBACK")
        lock.close()
    assert [r["messages"][0]["content"] for r in gateway.rows(4)] == [
        "before",
        "locked 0",
        "locked 1",
        "locked 2",
    ]
    assert get(f"{gateway.url}/v1/patina/status")[1]["store"]["lost"] == 0


def test_a_record_that_cannot_be_opened_costs_no_reply(upstream: Any, tmp_path: Path) -> None:
    missing = tmp_path / "gone" / "patina.db"
    with run_gateway(upstream, missing) as gateway:
        assert gateway.ask("hello").choices[0].message.content
        status, body = get(f"{gateway.url}/v1/patina/status")
        assert status == 200
        assert "record" in body["record_error"]
        assert (body["store"]["lost"], body["store"]["in_memory"]) == (0, 0)
        assert len(journalled(gateway)) == 1
        missing.parent.mkdir(exist_ok=True)
        upgrade(f"sqlite+aiosqlite:///{missing}")
        assert len(gateway.rows(1)) == 1


def raw_stream(gateway: Gateway, body: bytes) -> socket.socket:
    """Begin a streamed request on a bare socket and return it once the first event was read."""
    address = urlsplit(gateway.url)
    client = socket.create_connection((address.hostname, address.port), timeout=60)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
    client.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    seen = b""
    while b"data: " not in seen:
        seen += client.recv(65536)
    return client


def test_a_client_that_leaves_stops_the_backend_and_is_recorded_as_unfinished(gateway: Gateway) -> None:
    gateway.upstream.events["go"] = threading.Event()
    client = raw_stream(gateway, chat(stream=True, scripted={"text": "a long story", "hold": "go"}))
    assert gateway.upstream.held.wait(60)
    client.close()
    (row,) = gateway.rows(1)
    assert (row["stage"], row["drop_reason"], row["completion"]) == ("dropped", "unfinished", "a")
    for _ in range(3000):
        if gateway.upstream.closed_by_peer:
            break
        time.sleep(0.02)
    gateway.upstream.events["go"].set()
    assert gateway.upstream.closed_by_peer == ["Where is Oslo?"]


def test_a_client_that_leaves_before_the_answer_begins_is_recorded_too(gateway: Gateway) -> None:
    gateway.upstream.events["go"] = threading.Event()
    address = urlsplit(gateway.url)
    body = chat(scripted={"text": "x", "hold": "go"})
    client = socket.create_connection((address.hostname, address.port), timeout=60)
    client.sendall(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    assert gateway.upstream.held.wait(60)
    client.close()
    (row,) = gateway.rows(1)
    gateway.upstream.events["go"].set()
    assert (row["drop_reason"], row["completion"]) == ("unfinished", "")


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_cut_upstream_is_a_cut_for_the_client(gateway: Gateway, logprobs: bool) -> None:
    more = (
        {"logprobs": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
        if logprobs
        else {}
    )
    client = raw_stream(
        gateway, chat(stream=True, scripted={"text": "one two three", "cut_after": 3}, **more)
    )
    seen = b""
    while data := client.recv(65536):
        seen += data
    client.close()
    assert b"[DONE]" not in seen
    assert not seen.endswith(b"0\r\n\r\n")  # the chunked body has no end
    (row,) = gateway.rows(1)
    assert (row["drop_reason"], row["completion"]) == ("unfinished", "one two")


def test_an_unreachable_upstream_is_a_502_that_tells_the_truth(upstream: Any, record_file: Path) -> None:
    with run_gateway_at("http://127.0.0.1:9", upstream, record_file, is_local=False) as gateway:
        with pytest.raises(openai.InternalServerError) as caught:
            gateway.ask("hello")
        assert caught.value.status_code == 502
        assert "cannot connect to http://127.0.0.1:9" in str(caught.value)
        assert caught.value.response.headers["x-patina-turn"]
        assert gateway.rows(1)[0]["drop_reason"] == "upstream_error"


@pytest.mark.parametrize("is_local", [True, False])
def test_a_crowded_local_backend_that_was_not_reached_in_time_is_asked_again(
    upstream: Any, record_file: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    asked = 0
    with run_gateway(upstream, record_file, is_local=is_local) as gateway:
        engine = gateway.proxy._backend
        right = engine.open

        async def slow_once(method: str, path: str, *rest: Any, **more: Any) -> Any:
            nonlocal asked
            asked += path.endswith("completions")
            if asked == 1 and path.endswith("completions"):
                raise UpstreamConnectTimeout("the backend did not answer in time")
            return await right(method, path, *rest, **more)

        monkeypatch.setattr(engine, "open", slow_once)
        if is_local:
            assert gateway.ask("hello").choices
            assert asked == 2
        else:  # a remote endpoint: the client decides what to do
            with pytest.raises(openai.InternalServerError) as caught:
                gateway.ask("hello")
            assert (caught.value.status_code, asked) == (504, 1)


def test_errors_of_the_backend_reach_the_client_and_the_record(gateway: Gateway) -> None:
    gateway.upstream.is_down = True
    with pytest.raises(openai.InternalServerError) as caught:
        gateway.ask("hello")
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"] == "7"
    (row,) = gateway.rows(1)
    assert (row["stage"], row["drop_reason"]) == ("dropped", "upstream_error")


@pytest.mark.parametrize(
    ("status", "reason", "counter"),
    [
        (400, "request_refused", "requests_refused"),
        (422, "request_refused", "requests_refused"),
        (404, "upstream_error", "upstream_errors"),
        (429, "upstream_error", "upstream_errors"),
        (500, "upstream_error", "upstream_errors"),
    ],
)
def test_a_request_that_the_backend_refuses_is_not_counted_as_its_failure(
    gateway: Gateway, status: int, reason: str, counter: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        gateway.ask(
            "hello", extra_body={"scripted": {"status": status, "body": '{"error": {"message": "no"}}'}}
        )
    assert caught.value.status_code == status
    (row,) = gateway.rows(1)
    assert (row["stage"], row["drop_reason"]) == ("dropped", reason)
    state = gateway.proxy._process_state()
    counted = {name: state[name] for name in ("requests_refused", "upstream_errors")}
    assert counted == {"requests_refused": 0, "upstream_errors": 0, counter: 1}


# ------------------------------------------------------- a remote endpoint


def test_an_endpoint_that_refuses_our_fields_is_asked_again_without_them(remote_gateway: Gateway) -> None:
    remote_gateway.upstream.refuses = ("return_token_ids", "logprobs")
    remote_gateway.upstream.base = "gpt-x"
    with remote_gateway.client.with_options() as client:
        for _ in range(2):
            reply = client.chat.completions.create(
                model="gpt-x", messages=[{"role": "user", "content": "hi"}]
            )
            assert reply.choices[0].message.content
    bodies = [seen.body for seen in remote_gateway.upstream.seen]
    assert [("logprobs" in b, "return_token_ids" in b) for b in bodies] == [
        (True, True),
        (True, False),
        (False, False),
        (False, False),
    ]
    assert all(seen.header("authorization") == "Bearer upstream-key" for seen in remote_gateway.upstream.seen)
    rows = remote_gateway.rows(2)
    assert [r["drop_reason"] for r in rows] == ["no_tokens", "no_tokens"]
    assert rows[0]["policy"] == "gpt-x"


# ------------------------------------------------------------------- our own


def test_a_request_without_the_key_is_refused(gateway: Gateway) -> None:
    status, _, body = post(f"{gateway.url}/v1/chat/completions", chat(), Authorization="Bearer wrong")
    assert status == 401
    assert json.loads(body)["error"]["code"] == "invalid_api_key"
    assert gateway.upstream.seen == []
    with urllib.request.urlopen(f"{gateway.url}/healthz", timeout=60) as response:
        assert json.loads(response.read())["status"] == "ok"


def test_models_and_status_tell_what_is_live(gateway: Gateway) -> None:
    gateway.ask("hello")
    gateway.rows(1)
    status, models = get(f"{gateway.url}/v1/models")
    assert status == 200
    assert [(m["id"], m["metadata"]["version"]) for m in models["data"]] == [("tiny", 0)]
    assert get(f"{gateway.url}/v1/models/other")[0] == 404
    found = get(f"{gateway.url}/v1/patina/status")[1]
    assert (found["turns"], found["stages"], found["proxy"]["requests"]) == (1, {"recorded": 1}, 1)
    assert found["proxy"]["backend"]["ready"] is True
    assert get(f"{gateway.url}/elsewhere")[0] == 404


def test_an_unknown_model_is_a_404_in_the_form_of_the_upstream(gateway: Gateway) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        gateway.client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])
    assert caught.value.code == "model_not_found"
    for alias in ("tiny", "patina", "default"):
        reply = gateway.client.chat.completions.create(
            model=alias, messages=[{"role": "user", "content": "x"}]
        )
        assert reply.model == alias
        assert gateway.upstream.seen[-1].body["model"] == "tiny"


def test_feedback_that_no_version_learns_from_is_answered_with_the_reason(gateway: Gateway) -> None:
    reply = gateway.client.chat.completions.with_raw_response.create(
        model="tiny",
        messages=[{"role": "user", "content": "Where is Oslo?"}],
        extra_headers={"x-patina-train": "off"},
    )
    gateway.rows(1)
    turn = reply.headers["x-patina-turn"]
    status, _, answer = post(
        f"{gateway.url}/v1/feedback", json.dumps({"turn_id": turn, "text": "shorter"}).encode()
    )
    assert (status, json.loads(answer)) == (
        200,
        {"status": "recorded", "turn_id": turn, "trains": False, "reason": "opted_out"},
    )
    found = gateway.client.get(f"/patina/turns/{turn}", cast_to=dict[str, Any])
    assert found == {
        "turn_id": turn, "policy": "tiny", "stage": "dropped", "drop_reason": "opted_out", "version": None, "is_live": False,
    }  # fmt: skip
    with pytest.raises(openai.NotFoundError, match="No turn of this key"):
        gateway.client.get("/patina/turns/turn_unknown", cast_to=dict[str, Any])


def test_feedback_is_recorded_once_and_only_for_ones_own_turns(gateway: Gateway) -> None:
    reply = gateway.client.chat.completions.with_raw_response.create(
        model="tiny", messages=[{"role": "user", "content": "Where is Oslo?"}]
    )
    turn, completion = reply.headers["x-patina-turn"], reply.parse()

    def give(**body: Any) -> tuple[int, Any]:
        status, _, answer = post(f"{gateway.url}/v1/feedback", json.dumps(body).encode())
        return status, json.loads(answer)

    assert give(turn_id=turn, thumbs="up") == (200, {"status": "recorded", "turn_id": turn})
    assert give(turn_id=turn, thumbs="up") == (200, {"status": "duplicate", "turn_id": turn})
    assert give(completion_id=completion.id, text="shorter")[1] == {"status": "recorded", "turn_id": turn}
    exchange = {"prompt": "Where is Oslo?", "response": completion.choices[0].message.content}
    assert give(**exchange, feedback="no emoji")[1] == {"status": "recorded", "turn_id": turn}
    assert give(turn_id=turn, score=0.5, idempotency_key="k")[1]["status"] == "recorded"
    assert give(turn_id=turn, score=0.1, idempotency_key="k")[1]["status"] == "duplicate"
    assert give(turn_id="turn_unknown", score=1)[0] == 404
    assert give(turn_id=turn)[0] == 400
    assert post(f"{gateway.url}/v1/feedback", b"{")[0] == 400
    (row,) = gateway.rows(1)
    assert row["stage"] == "answered"


def test_no_secret_is_in_the_record_or_goes_to_the_backend(gateway: Gateway) -> None:
    gateway.ask("hello", extra_headers={"X-Api-Key": KEY})
    gateway.rows(1)
    folder = Path(gateway.record_url.split("///")[1]).parent
    assert not any(KEY.encode() in path.read_bytes() for path in folder.glob("patina.db*"))
    assert not any(KEY.encode() in value for _, value in gateway.upstream.seen[-1].headers)
