"""The OpenAI chat format: what is asked of the backend for a request, and what of its reply the client gets. Sans-IO.

To record exact tokens the backend is asked for more than the client asked for (`Injection`), and exactly that is taken out of
the reply again. Both are done on the bytes, never by writing the JSON anew: numbers, escapes, key order and white space stay as
the client and the backend wrote them. Replies are assembled beside this from the same parsed values, and nothing is ever repaired:
what does not add up becomes a turn with a drop reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from proxy.chunks import Usual
from proxy.earlier import Earlier, Requests
from proxy.ours import scrub
from proxy.splice import Member, elements, members, skip, with_members, without
from store.errors import AlignmentError, WireError
from store.lifecycle import DropReason
from store.values import Completion, Json


@dataclass(slots=True, kw_only=True)
class ChatRequest:
    """A parsed chat request.

    Attributes:
        body: as the client sent it.
        messages: its messages, all of them JSON objects.
        temperature: None when the client leaves it to the backend.
        before: the request whose messages, the very same objects, its messages begin with.
        remembered: what is remembered of this one.
    """

    body: Json
    messages: tuple[Json, ...]
    model: str | None
    stream: bool
    n: int
    temperature: float | None
    before: Earlier | None = None
    remembered: Earlier | None = None


@dataclass(slots=True, kw_only=True)
class Injection:
    """What was added to a request, and so must leave the reply again.

    Attributes:
        logprobs, token_ids, usage: asked for by us and not by the client.
        served_model: name the backend was given, when it is not the client's.
        client_model: name to be put back.
    """

    logprobs: bool = False
    token_ids: bool = False
    usage: bool = False
    served_model: str | None = None
    client_model: str | None = None

    @property
    def changes_reply(self) -> bool:
        return self.logprobs or self.token_ids or self.usage or self.served_model is not None

    @property
    def fields(self) -> tuple[str, ...]:
        """Names under which a backend would refuse what was added."""
        names = (
            ("logprobs", self.logprobs),
            ("return_token_ids", self.token_ids),
            ("stream_options", self.usage),
        )
        return tuple(name for name, is_added in names if is_added)


#: A body made of millions of tiny values would take up many times its size once read: it is only passed on.
_MANY, _MOST_VALUES = 1 << 20, 4_000_000
#: Nor is one read that is nested more deeply than what is written can be (orjson: 254) with what the record puts around it.
_DEEPEST = 240


def parse_chat(raw: bytes, earlier: Requests | None = None) -> ChatRequest:
    """Read a chat request.

    Args:
        earlier: the requests read lately: of one that goes on from them only the rest is parsed.

    Raises:
        WireError: not a JSON object with a list of messages (only the backend can say what is wrong with it), or one that could
            not be recorded. What stands before a colon in its text is one of a few reasons.
    """
    if len(raw) > _MANY and sum(raw.count(sign) for sign in (b",", b"[", b"{")) > _MOST_VALUES:
        raise WireError("the request has too many values to be read")
    before: Earlier | None = None
    found = earlier.read(raw) if earlier is not None else None
    if found is not None:
        body, before = found
        fresh = body["messages"][len(before.messages) :]
        is_deep = _is_nested_deeper(raw[len(before.start or b"") :], {**body, "messages": fresh}, _DEEPEST)
    else:
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError as exc:
            raise WireError(f"the request is not JSON: {exc}") from exc
        if not isinstance(body, dict):
            raise WireError("the request is not a JSON object")
        fresh = body.get("messages")
        is_deep = _is_nested_deeper(raw, body, _DEEPEST)
    if is_deep:
        raise WireError("the request is nested too deeply to be recorded")
    body = _without_secrets(body)
    if not isinstance(fresh, list) or not fresh or not all(_is_message(m) for m in fresh):
        raise WireError("the request has no list of messages")
    messages = tuple(body["messages"])
    model = body.get("model")
    n = body.get("n")
    temperature = body.get("temperature")
    return ChatRequest(
        body=body,
        messages=messages,
        model=model if isinstance(model, str) else None,
        stream=body.get("stream") is True,
        n=n if isinstance(n, int) and n > 0 else 1,
        temperature=float(temperature) if isinstance(temperature, int | float) else None,
        before=before,
        remembered=earlier.add(raw, body, messages, before) if earlier is not None else None,
    )


def _is_nested_deeper(raw: bytes, value: Any, most: int) -> bool:
    """Whether a JSON value, written as ``raw``, has more than ``most`` lists and objects inside each other."""
    return raw.count(b"[") + raw.count(b"{") > most and _is_deeper(
        value, most
    )  # nearly always the first says no


def _is_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role", ""), str | None)


#: Some clients put keys into the body: for a tool server's sake, or as a gateway's own parameter.
_SECRET_KEYS = frozenset(
    {"authorization", "proxy-authorization", "api_key", "apikey", "api-key", "x-api-key", "x-patina-key"}
    | {"access_token", "refresh_token", "client_secret", "password", "cookie", "secret"}
)
#: Never looked into for secrets: what people wrote, and schemas, in which a name means a parameter and not its value.
_NOT_LOOKED_INTO = frozenset({"messages", "functions", "function", "response_format", "parameters"})


def _without_secrets(body: Json) -> Json:
    """Return a body for the record without the values of fields that hold secrets."""
    return {name: _blanked(name, value) for name, value in body.items()}


def _blanked(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return "***" if name.lower() in _SECRET_KEYS else value
    if name in _NOT_LOOKED_INTO:
        return value
    if isinstance(value, dict):
        return {inner: _blanked(inner, what) for inner, what in value.items()}
    if isinstance(value, list):
        return [_blanked(name, what) for what in value]
    return value


def build_request(
    raw: bytes, chat: ChatRequest, *, fields: frozenset[str], served_model: str | None = None
) -> tuple[bytes, Injection]:
    """Return the body for the backend, and what was added to it: nothing else in it differs from the client's.

    Args:
        raw: the body that ``chat`` was read from.
        fields: what the backend understands of "logprobs", "return_token_ids", "stream_options".
        served_model: name the backend knows the policy version by; None leaves the client's.

    Raises:
        WireError: it cannot be edited; it can only be passed on as it is.
    """
    body = chat.body
    added: dict[str, bytes] = {}
    # `top_logprobs` without `logprobs` is the client's error, and the backend's to tell
    logprobs = "logprobs" in fields and body.get("logprobs") is not True and not body.get("top_logprobs")
    if logprobs:
        added["logprobs"] = b"true"
    token_ids = "return_token_ids" in fields and body.get("return_token_ids") is not True
    if token_ids:
        added["return_token_ids"] = b"true"
    options = body.get("stream_options")
    usage = (
        "stream_options" in fields
        and chat.stream
        and (options is None or isinstance(options, dict))
        and not (options or {}).get("include_usage")
    )
    renamed = served_model is not None and served_model != chat.model
    if renamed:
        added["model"] = orjson.dumps(served_model)
    injection = Injection(
        logprobs=logprobs,
        token_ids=token_ids,
        usage=usage,
        served_model=served_model if renamed else None,
        client_model=chat.model if renamed else None,
    )
    try:
        if usage:
            added["stream_options"] = _with_usage(raw, options)
        return with_members(raw, added, body), injection
    except ValueError as exc:
        raise WireError(f"the request cannot be edited: {exc}") from exc


def _with_usage(raw: bytes, options: Json | None) -> bytes:
    """Return the member `stream_options`, as the client wrote it, with the usage asked for."""
    wanted = {"include_usage": b"true"}
    if options is None:
        return b'{"include_usage":true}'
    written = [member for member in members(raw) if member.name == "stream_options"][
        -1
    ]  # the last one counts
    return with_members(raw[written.value : written.end], wanted, options)


# ---------------------------------------------------------------- taking out again

_KEYS = re.compile(rb'(?<!\\)"(logprobs|token_ids|prompt_token_ids|usage|model)"[ \t\r\n]*:[ \t\r\n]*')
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_NO_CHOICES = re.compile(rb'"choices"[ \t]*:[ \t]*\[[ \t]*\]')
_LENIENT = json.JSONDecoder(strict=False)
_IN_CHOICE = frozenset({"logprobs", "token_ids"})
_AT_TOP = frozenset({"prompt_token_ids", "usage", "model"})


@dataclass(frozen=True, slots=True)
class Habits:
    """What a backend puts where nothing was asked for: True: the key with null; False: no key; None: not seen yet."""

    logprobs: bool | None = None
    token_ids: bool | None = None


def strip_reply(raw: bytes, reply: Json, injection: Injection, habits: Habits = Habits()) -> bytes:
    """Return the bytes of one reply (or chunk) without what `Injection` added; ``reply`` is ``raw`` parsed.

    In JSON text an unescaped quote can only open or close a string, so ``"logprobs":`` is a key wherever it stands. Where a key
    occurs more often than where it is expected (an unknown field of the backend's that uses the same name), the text is walked.
    """
    quick = _strip_plain(raw, reply, injection, habits)
    if quick is not None:
        return quick
    wanted = {name: number for name, number in _expected(reply, injection).items() if number}
    if not wanted:
        return raw
    found: list[Member] = []
    missing = dict(wanted)
    for name in wanted:
        for start, value in _keys(raw, name):
            missing[name] -= 1
            found.append(Member(name, start, value, -1))  # its end is looked for below
    if any(missing.values()):
        found = list(_walked(raw, wanted))
    found.sort(key=_place)
    pieces: list[bytes] = []
    position = 0
    for name, start, value, end in found:
        end = end if end >= 0 else skip(raw, value)
        if name == "model":
            pieces += (raw[position:value], orjson.dumps(injection.client_model))
        elif _stays_as_null(name, reply, habits):
            pieces += (raw[position:value], b"null")
        else:
            start, end = without(raw, start, end, position)
            pieces.append(raw[position:start])
        position = end
    pieces.append(raw[position:])
    return b"".join(pieces)


def _strip_plain(raw: bytes, reply: Json, injection: Injection, habits: Habits) -> bytes | None:
    """Return the stripped bytes of what replies are made of: one choice, written without white space, each key once.

    None for any other, which the general way is for. Streams spend most of our time here. A key with its quotes stands in a text
    only as that key, or as a whole string; where it occurs once it is where the parsed reply has it.
    """
    choices = reply.get("choices")
    if type(choices) is not list or len(choices) != 1 or type(choices[0]) is not dict:
        return None
    choice = choices[0]
    if (injection.usage and "usage" in reply) or (injection.token_ids and habits.token_ids is True):
        return None
    # Each text is gone through as seldom as can be, and the largest part is taken out first.
    if injection.logprobs and choice.get("logprobs") is not None:
        start = _only(raw, b'"logprobs"') - 1
        if start < 0 or not raw.startswith(b',"logprobs":{', start):
            return None
        end = _end_of_logprobs(raw, start + 12, choice)
        is_null = _stays_as_null("logprobs", reply, habits)
        raw = raw[: start + 12] + b"null" + raw[end:] if is_null else raw[:start] + raw[end:]
    if injection.token_ids:
        for name, holder in (("prompt_token_ids", reply), ("token_ids", choice)):
            ids = holder.get(name, holder)
            if ids is holder:
                continue
            key = b'"%b"' % name.encode()
            start = _only(raw, key) - 1
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


def _only(raw: bytes, key: bytes) -> int:
    """Return where ``key`` stands; -1 if it stands nowhere or more than once."""
    at = raw.find(key)
    return at if at >= 0 and raw.find(key, at + 1) < 0 else -1


def _end_of_logprobs(raw: bytes, value: int, choice: Json) -> int:
    """Return where the value ends; the key that follows it in the parsed choice says so, if it occurs only once."""
    names = iter(choice)
    for name in names:
        if name == "logprobs":
            break
    following = next(names, None)
    if following is not None:
        key = b',"' + following.encode() + b'":'
        end = raw.rfind(key)  # it stands near the end, and nowhere before
        if end > value and raw.find(key, 0, end) < 0:
            return end
    return skip(raw, value)


def _place(member: Member) -> int:
    return member.key_start


def _keys(raw: bytes, name: str) -> Iterator[tuple[int, int]]:
    """Yield where ``"name":`` stands and where its value begins. Searching for the name itself is many times faster than a pattern."""
    quoted = b'"' + name.encode() + b'"'
    at = raw.find(quoted)
    while at >= 0:
        if raw[at - 1 : at] != b"\\":
            colon = _COLON.match(raw, at + len(quoted))
            if colon is not None:
                yield at, colon.end()
        at = raw.find(quoted, at + len(quoted))


def first_addition(torn: bytes, injection: Injection) -> int:
    """Return where in a reply that was cut short the first thing may stand that `Injection` added; its length if nothing does."""
    added = {
        "logprobs": injection.logprobs,
        "token_ids": injection.token_ids,
        "prompt_token_ids": injection.token_ids,
        "usage": injection.usage,
        "model": injection.served_model is not None,
    }
    if injection.usage and _NO_CHOICES.search(torn):
        return 0  # the chunk that only counts
    end = next((m.start() for m in _KEYS.finditer(torn) if added[m[1].decode()]), len(torn))
    if end == len(torn):  # the name of such a field may have begun
        begun = torn.rstrip(b" \t\r\n")
        keys = [f'"{name}":'.encode() for name, is_added in added.items() if is_added]
        for size in range(min(20, len(begun)), 0, -1):
            if any(key.startswith(begun[-size:]) for key in keys):
                end = len(begun) - size
                break
    return len(torn[:end].rstrip(b" \t,"))  # the comma went with it


def _walked(raw: bytes, wanted: Container[str]) -> Iterator[Member]:
    """Yield the members that have to go, found by their place in the reply."""
    for member in members(raw):
        if member.name in _AT_TOP and member.name in wanted:
            yield member
        elif member.name == "choices" and raw[member.value : member.value + 1] == b"[":
            for choice in elements(raw, member.value):
                if raw[choice : choice + 1] == b"{":
                    yield from (m for m in members(raw, choice) if m.name in _IN_CHOICE and m.name in wanted)


def _stays_as_null(name: str, reply: Json, habits: Habits) -> bool:
    """Whether the backend would have sent the key with null had nobody asked for it."""
    if name == "logprobs":
        return _is_in_template(reply) if habits.logprobs is None else habits.logprobs
    return name in ("token_ids", "prompt_token_ids") and habits.token_ids is True


def _is_in_template(reply: Json) -> bool:
    """Guess whether `logprobs` belongs to every choice of this backend or was put there because it was asked for.

    OpenAI's and vLLM's choices have it before the finish reason, null or not. Servers that only add it on demand add it at the end.
    """
    for choice in reply.get("choices") or ():
        if isinstance(choice, dict) and "logprobs" in choice and "finish_reason" in choice:
            names = list(choice)
            return names.index("logprobs") < names.index("finish_reason")
    return True


def learn_habits(habits: Habits, reply: Json, injection: Injection, body: Json) -> Habits:
    """Return what is known of a backend's habits after one reply (or chunk) to ``body``.

    A key that was not asked for shows its habit. So does the opening chunk of a stream that was asked for logprobs: it has no tokens
    yet, and carries the key or does not.
    """
    choices = [c for c in reply.get("choices") or () if isinstance(c, dict) and "finish_reason" in c]
    if not choices or reply.get("object") is None:
        return habits
    logprobs, token_ids = habits.logprobs, habits.token_ids
    first = choices[0]
    if (not injection.logprobs and not body.get("logprobs")) or (
        _opens_stream(first) and first.get("logprobs") is None
    ):
        logprobs = "logprobs" in first
    if not injection.token_ids and not body.get("return_token_ids") and not _opens_stream(first):
        token_ids = "token_ids" in first
    elif "prompt_logprobs" in reply or "prompt_text" in reply:
        token_ids = True  # vLLM of these days: it writes every field it knows, null where there is nothing
    if (logprobs, token_ids) == (habits.logprobs, habits.token_ids):
        return habits
    return Habits(logprobs, token_ids)


def _opens_stream(choice: Json) -> bool:
    delta = choice.get("delta")
    return isinstance(delta, dict) and "role" in delta and not delta.get("content")


def _expected(reply: Json, injection: Injection) -> dict[str, int]:
    """Return how often each key has to be taken out (or set back)."""
    choices = [c for c in reply.get("choices") or () if isinstance(c, dict)]
    return {
        # `null` already is what the client would have seen
        "logprobs": sum("logprobs" in c for c in choices)
        if injection.logprobs and any(c.get("logprobs") is not None for c in choices)
        else 0,
        "token_ids": sum("token_ids" in c for c in choices) if injection.token_ids else 0,
        "prompt_token_ids": int("prompt_token_ids" in reply) if injection.token_ids else 0,
        # What `include_usage` adds beside its own chunk is null in all others; counts in them are the backend's own idea.
        "usage": int("usage" in reply and reply["usage"] is None) if injection.usage else 0,
        "model": int(
            injection.served_model is not None
            and injection.client_model is not None
            and reply.get("model") == injection.served_model
        ),
    }


def read_reply(raw: bytes) -> tuple[Any, str]:
    """Return a reply (or chunk) parsed, None if it cannot be, and what is wrong with it or "".

    Backends in Python may write NaN and infinity, which are not JSON and are read all the same: a log-probability that is no number is a
    turn that does not train, not a reply with our additions left in.
    """
    try:
        return orjson.loads(raw), ""
    except orjson.JSONDecodeError:
        pass
    try:
        text = raw.decode()
        payload, end = _LENIENT.raw_decode(text, len(text) - len(text.lstrip()))
        if "\\u" in text:
            whole = _whole_characters(payload)
            if whole != payload:
                return whole, "the reply has half a character in it"
    except (ValueError, RecursionError):
        return None, "the reply is not JSON"
    return payload, "something follows the reply's JSON" if text[end:].strip() else ""


def _whole_characters(value: Any) -> Any:
    """Return a JSON value without halves of surrogate pairs, which JSON can spell and no text can hold."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_whole_characters(name): _whole_characters(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_whole_characters(inner) for inner in value]
    return value


def is_usage_only(chunk: Json) -> bool:
    """Whether a chunk is the one that `include_usage` adds at the end of a stream."""
    return chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)


def is_tokens_only(chunk: Json, body: Json) -> bool:
    """Whether a chunk is only there because tokens were asked for, which the client of ``body`` did not.

    Where a token gives no text yet (half a letter, a marker), vLLM and the built-in engine send nothing, unless ids or logprobs have to
    be told: then they send a chunk that says nothing else.
    """
    choices = chunk.get("choices")
    if not choices or body.get("logprobs") or body.get("return_token_ids") or chunk.get("usage"):
        return False
    for choice in choices:
        if not isinstance(choice, dict) or choice.get("finish_reason") is not None:
            return False
        if choice.get("delta") not in _SAYS_NOTHING or not (
            choice.get("token_ids") or choice.get("logprobs")
        ):
            return False
    return True


_SAYS_NOTHING: tuple[Json, ...] = ({}, {"content": ""})


def refused_fields(body: bytes, injection: Injection) -> tuple[str, ...]:
    """Return which of the added fields a backend's error talks about."""
    text = body[:4000].decode("utf-8", "replace")
    return tuple(name for name in injection.fields if name in text)


def error_body(message: str, *, kind: str, code: str | None = None, param: str | None = None) -> bytes:
    """Return an error in the shape OpenAI clients understand."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


# ---------------------------------------------------------------------- assembling


class _Choice:
    __slots__ = ("calls", "finish_reason", "logprobs", "problem", "reasoning", "refusal", "text", "token_ids")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.calls: dict[int, dict[str, Any]] = {}
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish_reason: str | None = None
        self.problem = ""


@dataclass(slots=True, kw_only=True)
class Assembled:
    """One reply, put together.

    Attributes:
        completions: by index; empty when the backend sent none.
        is_finished: every choice that was asked for has its finish reason.
        problem: why a part could not be read, or "".
        error: the backend's own error inside a stream, or None.
    """

    completion_id: str | None
    completions: tuple[Completion, ...]
    prompt_token_ids: tuple[int, ...]
    usage: Json | None
    is_finished: bool
    problem: str
    error: str | None


class Assembler:
    """Put one reply together, whole or in chunks. It never raises and never repairs: a part it cannot read is a `problem`."""

    def __init__(self, n: int = 1) -> None:
        self._n = n
        self._id: str | None = None
        self._choices: dict[int, _Choice] = {}
        self._prompt: tuple[int, ...] = ()
        self._usage: Json | None = None
        self._problem = ""
        self._error: str | None = None
        self._usual: list[Usual] = []

    def follow(self, usual: Usual) -> None:
        """What the usual chunk of a choice takes from now on belongs to this reply."""
        self._catch_up()
        self._usual = [known for known in self._usual if known.index != usual.index]
        self._usual.append(usual)

    def _catch_up(self) -> None:
        for usual in self._usual:
            if usual.has_taken:
                text, logprobs, ids = usual.tell()
                state = self._choices[usual.index]
                (state.text if usual.channel == "content" else state.reasoning).append(text)
                state.logprobs += logprobs
                state.token_ids += ids

    def take(self, payload: Any, *, part: str) -> None:
        """Take one parsed reply: ``part`` is "message" (whole reply) or "delta" (chunk)."""
        if self._usual:
            self._catch_up()
        if not isinstance(payload, dict):
            self._complain("not a JSON object")
            return
        if payload.get("error") is not None and not payload.get("choices"):
            error = payload["error"]
            message = error.get("message") if isinstance(error, dict) else error
            self._error = scrub(str(message)[:500])
            return
        if isinstance(payload.get("id"), str):
            self._id = payload["id"]
        if isinstance(payload.get("usage"), dict):
            self._usage = payload["usage"]
        prompt = payload.get("prompt_token_ids")
        if prompt is not None:
            if _is_ids(prompt):
                self._prompt = tuple(prompt)
            else:
                self._complain("prompt_token_ids are not token ids")
        choices = payload.get("choices")
        if not isinstance(choices, list):
            self._complain("no list of choices")
            return
        for choice in choices:
            if isinstance(choice, dict):
                self._take_choice(choice, part)
            else:
                self._complain("a choice is not a JSON object")

    def complain(self, problem: str) -> None:
        """Note that a part of the reply could not be read at all."""
        self._complain(problem)

    def close(self) -> Assembled:
        self._catch_up()
        if self._usage is not None and _is_deeper(self._usage, _DEEPEST):
            self._complain("usage is nested too deeply to be recorded")
            self._usage = None
        completions = tuple(_completion(i, self._choices[i]) for i in sorted(self._choices))
        return Assembled(
            completion_id=self._id,
            completions=completions,
            prompt_token_ids=self._prompt,
            usage=self._usage,
            is_finished=len(completions) >= self._n and all(c.finish_reason is not None for c in completions),
            problem=self._problem,
            error=self._error,
        )

    def _complain(self, problem: str) -> None:
        self._problem = self._problem or problem

    def _take_choice(self, choice: Json, part: str) -> None:
        index = choice.get("index", 0)
        if not isinstance(index, int):
            self._complain("a choice has no index")
            return
        state = self._choices.setdefault(index, _Choice())
        said = choice.get(part)
        if isinstance(said, dict):
            self._take_said(state, said, part)
        elif said is not None:
            self._complain(f"a {part} is not a JSON object")
        token_ids = choice.get("token_ids")
        if token_ids is not None:
            if _is_ids(token_ids):
                state.token_ids += token_ids
            else:
                self._complain("token_ids are not token ids")
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict):
            self._take_logprobs(state, logprobs.get("content") or [])
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            state.finish_reason = reason

    def _take_logprobs(self, state: _Choice, entries: Any) -> None:
        if not isinstance(entries, list):
            self._complain("logprobs are no list")
            return
        try:
            values = [entry["logprob"] for entry in entries]
        except (TypeError, KeyError, IndexError):
            values = []
        if values and set(map(type, values)) == {float}:  # nearly always
            state.logprobs += values
            return
        for entry in entries:
            value = entry.get("logprob") if isinstance(entry, dict) else None
            if isinstance(value, int | float) and not isinstance(value, bool):
                state.logprobs.append(float(value))
            else:
                self._complain("a logprob is not a number")

    def _take_said(self, state: _Choice, said: Json, part: str) -> None:
        content = said.get("content")
        if isinstance(content, str):
            state.text.append(content)
        elif isinstance(content, list):
            state.text += [
                p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str)
            ]
        reasoning = said.get("reasoning_content")
        if not isinstance(reasoning, str):
            reasoning = said.get("reasoning")  # one field or the other, never both
        if isinstance(reasoning, str):
            state.reasoning.append(reasoning)
        if isinstance(said.get("refusal"), str):
            state.refusal.append(said["refusal"])
        calls = said.get("tool_calls")
        for position, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                self._take_call(state, call, position, part)
        single = said.get("function_call")
        if isinstance(single, dict):
            self._take_call(state, {"function": single}, 0, part)

    def _take_call(self, state: _Choice, call: Json, position: int, part: str) -> None:
        index = call.get("index", position) if part == "delta" else position
        if not isinstance(index, int):
            self._complain("a tool call has no index")
            return
        whole = state.calls.setdefault(index, {"type": "function", "function": {"name": "", "arguments": ""}})
        if isinstance(call.get("id"), str):
            whole["id"] = call["id"]
        if isinstance(call.get("type"), str):
            whole["type"] = call["type"]
        function = call.get("function")
        if isinstance(function, dict):
            # the name comes once; engines that repeat it in every delta mean the same one
            if isinstance(function.get("name"), str) and not whole["function"]["name"]:
                whole["function"]["name"] = function["name"]
            if isinstance(function.get("arguments"), str):
                whole["function"]["arguments"] += function["arguments"]


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and (not value or (set(map(type, value)) == {int} and min(value) >= 0))


def _completion(index: int, state: _Choice) -> Completion:
    return Completion(
        index=index,
        text="".join(state.text) or "".join(state.refusal),
        reasoning="".join(state.reasoning),
        tool_calls=tuple(state.calls[i] for i in sorted(state.calls)),
        token_ids=tuple(state.token_ids),
        sampling_logprobs=tuple(state.logprobs),
        finish_reason=state.finish_reason,
    )


def token_fault(
    completion: Completion, completions: Sequence[Completion], usage: Mapping[str, Any] | None
) -> tuple[DropReason, str] | None:
    """Return why a completion's tokens cannot be trained on, or None. Counts are held against usage over all choices."""
    if not completion.token_ids or not completion.sampling_logprobs:
        missing = "token ids" if not completion.token_ids else "logprobs"
        return DropReason.NO_TOKENS, f"the backend sent no {missing}"
    try:
        completion.require_aligned()
    except AlignmentError as exc:
        return DropReason.TOKEN_MISMATCH, str(exc)
    counted = usage.get("completion_tokens") if usage is not None else None
    if isinstance(counted, int):
        total = sum(len(c.token_ids) for c in completions)
        if total != counted:
            return DropReason.TOKEN_MISMATCH, f"{total} token ids but usage counts {counted}"
    return None
