"""Removal of what the proxy asked for (`Injection`) from a backend's reply. Sans-IO.

This is done on the bytes: numbers, escapes, key order and white space stay as the backend wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from store.values import Json
from wire.chat_request import Injection
from wire.json_splice import Member, elements, members, span_with_comma, value_end
from wire.lenient_json import load_lenient

_KEYS = re.compile(rb'(?<!\\)"(logprobs|token_ids|prompt_token_ids|usage|model)"[ \t\r\n]*:[ \t\r\n]*')


_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")


_NO_CHOICES = re.compile(rb'"choices"[ \t]*:[ \t]*\[[ \t]*\]')


#: A completion's choice holds the ids of its prompt; a chat reply has them at the top.
_IN_CHOICE = frozenset({"logprobs", "token_ids", "prompt_token_ids"})


_AT_TOP = frozenset({"prompt_token_ids", "usage", "model"})


@dataclass(frozen=True, slots=True)
class NullFieldStyle:
    """How a backend writes a field that was not requested. True: the key with null; False: no key; None: not observed yet."""

    logprobs: bool | None = None
    token_ids: bool | None = None


def strip_reply(
    raw: bytes, reply: Json, injection: Injection, null_style: NullFieldStyle = NullFieldStyle()
) -> bytes:
    """Return the bytes of a reply (or chunk) without what `Injection` added; ``reply`` is ``raw`` parsed.

    In JSON an unescaped quote can only open or close a string, so ``"logprobs":`` is a key wherever it stands. Where a key occurs more
    often than expected (an unknown field of the backend uses the same name), the text is walked.
    """
    quick = _strip_simple_reply(raw, reply, injection, null_style)
    if quick is not None:
        return quick
    wanted = {name: number for name, number in _count_additions(reply, injection).items() if number}
    if not wanted:
        return raw
    found: list[Member] = []
    missing = dict(wanted)
    for name in wanted:
        for start, value in _find_keys(raw, name):
            missing[name] -= 1
            found.append(Member(name, start, value, -1))  # its end is computed below
    if any(missing.values()):
        found = list(_find_by_walking(raw, wanted))
    found.sort(key=_key_start)
    pieces: list[bytes] = []
    position = 0
    for name, start, value, end in found:
        end = end if end >= 0 else value_end(raw, value)
        if name == "model":
            pieces += (raw[position:value], orjson.dumps(injection.client_model))
        elif _stays_as_null(name, reply, null_style):
            pieces += (raw[position:value], b"null")
        else:
            start, end = span_with_comma(raw, start, end, position)
            pieces.append(raw[position:start])
        position = end
    pieces.append(raw[position:])
    return b"".join(pieces)


def _strip_simple_reply(
    raw: bytes, reply: Json, injection: Injection, null_style: NullFieldStyle
) -> bytes | None:
    """Return the stripped bytes of the usual reply: one choice, no white space, each key once. None for any other.

    Streams spend most of their time here. A key with its quotes occurs in a text only as that key or as a whole string; where it occurs
    once, it is where the parsed reply has it.
    """
    choices = reply.get("choices")
    if type(choices) is not list or len(choices) != 1 or type(choices[0]) is not dict:
        return None
    choice = choices[0]
    if (injection.usage and "usage" in reply) or (injection.token_ids and null_style.token_ids is True):
        return None
    # Each text is scanned as rarely as possible, and the largest part is removed first.
    if injection.logprobs and choice.get("logprobs") is not None:
        start = _find_only(raw, b'"logprobs"') - 1
        if start < 0 or not raw.startswith(b',"logprobs":{', start):
            return None
        end = _end_of_logprobs(raw, start + 12, choice)
        is_null = _stays_as_null("logprobs", reply, null_style)
        raw = raw[: start + 12] + b"null" + raw[end:] if is_null else raw[:start] + raw[end:]
    if injection.token_ids:
        for name, holder in (
            ("prompt_token_ids", reply),
            ("prompt_token_ids", choice),
            ("token_ids", choice),
        ):
            ids = holder.get(name, holder)
            if ids is holder:
                continue
            key = b'"%b"' % name.encode()
            start = _find_only(raw, key) - 1
            if start < 0 or not raw.startswith(b",%b:[" % key, start) or (ids and type(ids[-1]) is not int):
                return None
            raw = raw[:start] + raw[raw.index(b"]", start) + 1 :]
    if injection.served_model is not None and reply.get("model") == injection.served_model:
        if injection.client_model is None:
            return raw
        served = b'"model":' + orjson.dumps(injection.served_model)
        if raw.count(b'"model"') != 1 or served not in raw:
            return None
        raw = raw.replace(served, b'"model":' + orjson.dumps(injection.client_model), 1)
    return raw


def _find_only(raw: bytes, key: bytes) -> int:
    """Return the position of ``key``; -1 if it occurs never or more than once."""
    at = raw.find(key)
    return at if at >= 0 and raw.find(key, at + 1) < 0 else -1


def _end_of_logprobs(raw: bytes, value: int, choice: Json) -> int:
    """Return the end of the value: the position of the next key of the parsed choice, if that key occurs only once."""
    names = iter(choice)
    for name in names:
        if name == "logprobs":
            break
    following = next(names, None)
    if following is not None:
        key = b',"' + following.encode() + b'":'
        end = raw.rfind(key)  # near the end, and nowhere before
        if end > value and raw.find(key, 0, end) < 0:
            return end
    return value_end(raw, value)


def _key_start(member: Member) -> int:
    return member.key_start


def _find_keys(raw: bytes, name: str) -> Iterator[tuple[int, int]]:
    """Yield the position of ``"name":`` and of its value. Searching for the name is many times faster than a pattern."""
    quoted = b'"' + name.encode() + b'"'
    at = raw.find(quoted)
    while at >= 0:
        if raw[at - 1 : at] != b"\\":
            colon = _COLON.match(raw, at + len(quoted))
            if colon is not None:
                yield at, colon.end()
        at = raw.find(quoted, at + len(quoted))


def find_first_addition(torn: bytes, injection: Injection) -> int:
    """Return where, in a truncated reply, the first addition of `Injection` may begin; the reply's length if there is none."""
    added = {
        "logprobs": injection.logprobs,
        "token_ids": injection.token_ids,
        "prompt_token_ids": injection.token_ids,
        "usage": injection.usage,
        "model": injection.served_model is not None,
    }
    if injection.usage and _NO_CHOICES.search(torn):
        return 0  # the usage chunk
    end = next((m.start() for m in _KEYS.finditer(torn) if added[m[1].decode()]), len(torn))
    if end == len(torn):  # a field name may be cut in the middle
        begun = torn.rstrip(b" \t\r\n")
        keys = [f'"{name}":'.encode() for name, is_added in added.items() if is_added]
        for size in range(min(20, len(begun)), 0, -1):
            if any(key.startswith(begun[-size:]) for key in keys):
                end = len(begun) - size
                break
    return len(torn[:end].rstrip(b" \t,"))  # the comma is part of the addition


def _find_by_walking(raw: bytes, wanted: Container[str]) -> Iterator[Member]:
    """Yield the members to remove, found by their place in the reply."""
    for member in members(raw):
        if member.name in _AT_TOP and member.name in wanted:
            yield member
        elif member.name == "choices" and raw[member.value : member.value + 1] == b"[":
            for choice in elements(raw, member.value):
                if raw[choice : choice + 1] == b"{":
                    yield from (m for m in members(raw, choice) if m.name in _IN_CHOICE and m.name in wanted)


def _stays_as_null(name: str, reply: Json, null_style: NullFieldStyle) -> bool:
    """Whether the backend would have sent the key with null if it had not been requested."""
    if name == "logprobs":
        return _is_in_template(reply) if null_style.logprobs is None else null_style.logprobs
    return name in ("token_ids", "prompt_token_ids") and null_style.token_ids is True


def _is_in_template(reply: Json) -> bool:
    """Guess whether `logprobs` belongs to every choice of this backend or appears only on request.

    In OpenAI's and vLLM's choices it precedes the finish reason, null or not. Servers that add it on request add it at the end.
    """
    for choice in reply.get("choices") or ():
        if isinstance(choice, dict) and "logprobs" in choice and "finish_reason" in choice:
            names = list(choice)
            return names.index("logprobs") < names.index("finish_reason")
    return True


def observe_null_style(
    null_style: NullFieldStyle, reply: Json, injection: Injection, body: Json
) -> NullFieldStyle:
    """Return the null style of a backend after one more reply (or chunk) to ``body``.

    A key that was not requested shows the style. So does the first chunk of a stream with requested logprobs: it has no tokens yet, and
    carries the key or does not.
    """
    choices = [c for c in reply.get("choices") or () if isinstance(c, dict) and "finish_reason" in c]
    if not choices or reply.get("object") is None:
        return null_style
    logprobs, token_ids = null_style.logprobs, null_style.token_ids
    first = choices[0]
    if (not injection.logprobs and not body.get("logprobs")) or (
        _opens_stream(first) and first.get("logprobs") is None
    ):
        logprobs = "logprobs" in first
    if not injection.token_ids and not body.get("return_token_ids") and not _opens_stream(first):
        token_ids = "token_ids" in first
    elif "prompt_logprobs" in reply or "prompt_text" in reply:
        token_ids = True  # recent vLLM writes every known field, null where there is no value
    if (logprobs, token_ids) == (null_style.logprobs, null_style.token_ids):
        return null_style
    return NullFieldStyle(logprobs, token_ids)


def _opens_stream(choice: Json) -> bool:
    delta = choice.get("delta")
    return isinstance(delta, dict) and "role" in delta and not delta.get("content")


def _count_additions(reply: Json, injection: Injection) -> dict[str, int]:
    """Return how often each key must be removed (or restored)."""
    choices = [c for c in reply.get("choices") or () if isinstance(c, dict)]
    return {
        # `null` is what the client would have received.
        "logprobs": sum("logprobs" in c for c in choices)
        if injection.logprobs and any(c.get("logprobs") is not None for c in choices)
        else 0,
        "token_ids": sum("token_ids" in c for c in choices) if injection.token_ids else 0,
        "prompt_token_ids": ("prompt_token_ids" in reply) + sum("prompt_token_ids" in c for c in choices)
        if injection.token_ids
        else 0,
        # `include_usage` adds null to all chunks but its own; counts in them are the backend's own.
        "usage": int("usage" in reply and reply["usage"] is None) if injection.usage else 0,
        "model": int(
            injection.served_model is not None
            and injection.client_model is not None
            and reply.get("model") == injection.served_model
        ),
    }


def read_reply(raw: bytes) -> tuple[Any, str]:
    """Return a parsed reply (or chunk), None if it cannot be parsed, and a problem or "".

    Backends in Python may write NaN and infinity, which are not JSON. They are parsed all the same: a log-probability that is not a number
    costs the turn its training, and the additions must still be removed from the reply.
    """
    try:
        return orjson.loads(raw), ""
    except orjson.JSONDecodeError:
        pass
    try:
        payload, is_followed = load_lenient(raw)
    except (ValueError, RecursionError):
        return None, "the reply is not JSON"
    return payload, "data follows the reply's JSON" if is_followed else ""


def read_chunk(data: bytes, event: bytes = b"") -> tuple[Any, str]:
    """Return the parsed data of an event, as `read_reply` does. Data that is no object is a ping, and all of an `error` event is the error."""
    chunk, problem = read_reply(data)
    if chunk is None and not data.lstrip().startswith((b"{", b"[")):
        chunk, problem = data.decode("utf-8", "replace"), ""
    if event.startswith((b"event: error", b"event:error")) and not (
        isinstance(chunk, dict) and "error" in chunk
    ):
        chunk = {"error": chunk}
    return chunk, problem and "an event is not JSON"


def is_usage_only(chunk: Json) -> bool:
    """Whether a chunk is the one that `include_usage` adds at the end of a stream."""
    return chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)


def is_tokens_only(chunk: Json, body: Json) -> bool:
    """Whether a chunk exists only because tokens were requested, which the client of ``body`` did not do.

    While a token yields no text yet (part of a character, a marker), vLLM and the built-in engine send nothing, unless ids or logprobs were
    requested: then they send a chunk with nothing else.
    """
    choices = chunk.get("choices")
    if not choices or body.get("logprobs") or body.get("return_token_ids") or chunk.get("usage"):
        return False
    for choice in choices:
        if not isinstance(choice, dict) or choice.get("finish_reason") is not None:
            return False
        if choice.get("delta") not in _EMPTY_DELTAS or not (
            choice.get("token_ids") or choice.get("logprobs")
        ):
            return False
    return True


_EMPTY_DELTAS: tuple[Json, ...] = ({}, {"content": ""})


def refused_fields(body: bytes, injection: Injection) -> tuple[str, ...]:
    """Return which of the added fields a backend's error mentions."""
    text = body[:4000].decode("utf-8", "replace")
    return tuple(name for name in injection.fields if name in text)
