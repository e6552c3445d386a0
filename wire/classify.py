"""Classification of a turn: main (the user or their agent) or side (the client's own requests: titles, summaries, memory). Sans-IO.

A turn's kind is an additive score over evidence. Each piece has a code and a weight (`weights.json`, log-odds of a side turn): positive for side,
negative for main; the sum decides. Three kinds of evidence:

* *structure of the request*: who speaks last, a written-out dialogue or form inside one message, a forced schema on a fresh request, the token
  limit, tools offered and used. It does not depend on language.
* *the record* (`RecordEvidence`): the request extends a recorded turn, with another system prompt or fewer tools; its long literal beginning stood
  before other texts of the same client (a template); the turn was itself continued by a person.
* *words* (`wire.evidence`): in the newest user text and in the beginning of a short system prompt, nowhere else.

Explicit headers win over every score (`wire.headers`). The kind is provisional until the turn is followed: `reconsider` adds what is known later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

from store.texts import content_text
from store.values import Completion, TurnKind
from wire.evidence import FORMS, MACHINES, TOPICS, find_words
from wire.line_text import FIELDS, normalise_line
from wire.user_text import is_machine_event, strip_client_context, strip_reasoning

Message = Mapping[str, Any]

#: Characters at a text's beginning and end in which words are evidence, and the length up to which a system prompt is a short one.
_HEAD_CHARS, _TAIL_CHARS, _SHORT_SYSTEM_CHARS = 700, 300, 4000
#: Sum from which a turn is a side turn. Above zero, because a person's turn that counts as one is lost, and a side turn that nothing follows is not.
SIDE_FROM = 0.1
#: A token limit up to this is low.
MANY_TOKENS = 64
#: Characters of a text's beginning and end that are searched for dialogues and forms.
_FORM_CHARS = 3000
#: Characters of a text's beginning and end from which client context is removed.
_MAX_CHARS = 20_000

#: Evidence code -> weight; `bias` is the score of a request without any evidence.
WEIGHTS: Mapping[str, float] = json.loads((files(__package__) / "weights.json").read_text("utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One piece of evidence; positive weights are for a side turn."""

    code: str
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """A kind with its reason code and the evidence for it, strongest first."""

    kind: TurnKind
    reason: str
    evidence: tuple[Evidence, ...] = ()

    @property
    def score(self) -> float:
        return sum(e.weight for e in self.evidence)


#: Structural evidence: code -> (topic of a side turn, meaning).
STRUCTURE: Mapping[str, tuple[str, str]] = {
    "bias": ("", "any request"),
    "opening": ("", "the history contains no reply"),
    "one_message": ("", "the request is one user message"),
    "tools_offered": ("", "tools are offered"),
    "tools_used": ("", "the history contains tool calls"),
    "tool_results": ("", "the newest message is a tool's result"),
    "long_system": ("", "a long system prompt"),
    "structured_opening": ("structured_one_off", "a forced schema or call on a fresh request"),
    "structured": ("", "a forced schema or call"),
    "reply_schema": ("", "a schema in `response_format`, which people's programs send too"),
    "json_mode": ("", "a `response_format` of any JSON"),
    "written_schema": ("structured_one_off", "an order to follow a JSON schema written out on a fresh request"),
    "probe": ("probe", "room for one token on a fresh request or under an instruction, or for a few after a greeting"),
    "few_tokens": ("", "a low token limit on a request with instructions"),
    "temperature_0": ("", "temperature 0 on a fresh request"),
    "short_question": ("", "a short newest message without instructions"),
    "long_instruction": ("text_function", "a newest message that lists instructions, without a person's pronouns"),
    "quoted_speaker": ("", "a line of one speaker inside one message"),
    "forced_tool": ("structured_one_off", "one tool is offered on a fresh request, and a short system prompt orders its call"),
    "dialogue_inside": ("quoted_conversation", "a written-out dialogue inside one message"),
    "only_dialogue": ("quoted_conversation", "the newest message is only a written-out dialogue; the instruction stands elsewhere"),
    "container": ("quoted_conversation", "a conversation in a container inside one message"),
    "form": ("text_function", "a filled-in form"),
    "open_field": ("text_function", "the prompt ends with the name of an empty field"),
    "awaits_next_line": ("", "the prompt ends where the next line of a dialogue begins"),
    "diff": ("commit_message", "a diff after an instruction"),
    "cursor": ("autocomplete", "text around a cursor"),
    "closing_instruction": ("closing_instruction", "only the client's instruction follows the last reply"),
    "machine_event": ("heartbeat", "an envelope without user text"),
    "other_speaker": ("agent_to_agent", "the newest message has another speaker than the first"),
    "existing_summary": ("", "the newest text begins with a summary that exists already"),
    "no_words": ("announce", "the newest user message contains only client context"),
    "topic_form": ("", "a client's topic in a form that a program reads"),
    "topic_dialogue": ("", "a client's topic, about a conversation"),
    "topic_form_dialogue": ("", "a client's topic, about a conversation, in a form that a program reads"),
    "role_topic_form": ("", "a short system prompt gives a client's topic and the form of the answer"),
    "role_topic_function": ("", "a short system prompt makes the model a text function with a client's topic"),
    "role_topic_structured": ("structured_one_off", "a short system prompt gives a client's topic, and a schema is forced"),
    "form_with_tools": ("", "a filled-in form on a fresh request that offers tools: an agent's task"),
    "instructed_form": ("text_function", "a long system prompt without tools before a form that lists instructions"),
    "titled_dialogue": ("", "a client's topic in a form, about a dialogue that ends where its next line begins"),
    "agent_form": ("", "an agent's steps in text: lines for thought, action and final answer"),
    "role_order": ("", "a short system prompt begins with an order about a text"),
    "ask_topic_head": ("", "the newest text begins with a client's topic"),
    "plain_topic": ("", "a client's topic in a short text that is about no conversation"),
    "works_on_history": ("", "a client's topic about the conversation that precedes, not in the first person"),
    "handover": ("summary", "a summary or notes for a context that continues without its beginning"),
    "extends_main": ("", "the request continues a recorded main turn"),
    "extends_side": ("", "the request continues a recorded side turn"),
    "instructed_side": ("text_function", "instructions in a list continue a recorded side turn"),
    "new_system": ("text_function", "the history is a recorded one, the system prompt is another"),
    "fewer_tools": ("text_function", "the history is a recorded one, its tools are not offered any more"),
    "known_system": ("", "people continue conversations under this system prompt, so that its words are no evidence"),
    "beside_main": ("text_function", "the same text was sent at the same time without this schema or token limit"),
    "template": ("text_function", "its long literal beginning stood before other texts of this client, never continued"),
    "same_form": ("", "it writes out a recorded main turn in that turn's own form, under the same system prompt"),
    "tools_followed": ("", "a later request brought the results of tools that it called"),
    "continued": ("", "a later request continued it with a person's new words"),
}  # fmt: skip

#: Evidence of structure that other evidence amounts to: code -> (all of these, none of these).
CROSSED: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "form_with_tools": (frozenset({"opening", "form", "tools_offered"}), frozenset({"ask_topic_head"})),
    "instructed_form": (frozenset({"opening", "form", "long_system", "long_instruction"}), frozenset({"tools_offered"})),
    "titled_dialogue": (frozenset({"awaits_next_line", "topic_form"}), frozenset()),
}  # fmt: skip

#: Evidence that only linking finds; it decides alone (`recorder.linking`), and no later message outweighs it.
LINKED: Mapping[str, str] = {
    "guardrail": "checks a message instead of answering it",
    "agent_to_agent": "sent by another agent, not by the user",
    "silent_reply": "the reply is a token that only a program reads",
    "subagent": "the work of an agent's sub-agent",
    "client_header": "the client named the kind (X-Turn-Type)",
}
#: Relations between requests; each decides alone (`recorder.kinds`).
RELATIONS: Mapping[str, str] = {
    "continued": "a later request continued it with a person's new words",
    "tool_loop": "it brings the results of tools that a main turn called",
    "known_frame": "people continue conversations under this system prompt and these tools",
    "same_body": "an identical request was of this kind",
    "serialised": "its text is the serialised message of a turn that was sent beside it",
    "beside_main": "the same text was sent at the same time without this form or limit",
}
_DECISIVE = frozenset({"client_header", *RELATIONS})
#: evidence or reason code -> meaning, for display.
MEANINGS: Mapping[str, str] = {
    **{code: meaning for code, (_, meaning) in STRUCTURE.items()},
    **{f"{place}_{p.code}": f"{name} {p.meaning}" for place, name in (("ask", "the newest text:"), ("role", "the system prompt:")) for p in (*TOPICS, *MACHINES, *FORMS)},
    **{p.topic: p.meaning for p in (*TOPICS, *MACHINES) if p.topic},
    **{topic: meaning for topic, meaning in STRUCTURE.values() if topic},
    **LINKED,
    **RELATIONS,
    "conversation": "no evidence of a side turn outweighs the rest",
    "works_on_recorded_exchange": "it quotes a recorded question with its answer and does not wait for the next line",
    "side_tool_results": "only tool results or a framework's text follow a side turn",
}  # fmt: skip
_TOPIC_OF: Mapping[str, str] = {
    **{f"{place}_{p.code}": p.topic for place in ("ask", "role") for p in (*TOPICS, *MACHINES)},
    **{code: topic for code, (topic, _) in STRUCTURE.items() if topic},
}
#: Topics from the most specific one on.
_TOPIC_ORDER = {topic: i for i, topic in enumerate(dict.fromkeys(_TOPIC_OF.values()))}
_TOPIC_CODES = frozenset(p.code for p in TOPICS)

#: What a `response_format` is evidence of, and what people's requests with one have as well: together they make no side turn. For JSON without a
#: schema, OpenAI's API wants the word in the prompt.
_FORCED = frozenset({"structured", "structured_opening"})
_BESIDE_SCHEMA = _FORCED | {"reply_schema", "bias", "opening", "one_message", "temperature_0"}
_BESIDE_JSON_MODE = _BESIDE_SCHEMA | {"json_mode", "ask_form", "role_form"}

_FORM_TOPICS = frozenset({"text_function", "quoted_conversation", "structured_one_off", "judge"})
_MACHINE_CODES = frozenset({"machine_event", "other_speaker", *(f"ask_{p.code}" for p in MACHINES)})
#: Forms that are no person's under any system prompt.
_PROGRAM_CODES = frozenset({
    "dialogue_inside", "only_dialogue", "container", "quoted_speaker", "form", "structured", "structured_opening", "written_schema",
    "forced_tool", "probe", "beside_main", "closing_instruction", "cursor", "template",
})  # fmt: skip
_MARKUP = " \t#*>|<[(\"'`-•"
_PEOPLE = ("user", "human", "nutzer", "usuario", "utilisateur", "utente", "usuário", "用户", "人类", "ユーザー", "사용자", "пользователь")  # fmt: skip
_MODELS = ("assistant", "ai", "bot", "model", "agent", "assistent", "asistente", "助手", "アシスタント", "어시스턴트", "ассистент")  # fmt: skip
_INITIALS = frozenset(name[0] for name in (*_PEOPLE, *_MODELS))
_SPEAKS = re.compile(r"[^\W\d_]+(?: [^\W\d_]+){0,2}\W{0,6}[:：>\]]")
_PACKED = re.compile(r"""["']role["']: ?["'](?:user|human|assistant|ai|model)["']""")
_SLOT = re.compile(r"[ \t]*(?:[#*\[]{0,5} ?[A-Z][\w' ()-]{1,40}(?:[:：]|\][:：]?|\*\*[:：]?)|#{1,5} [A-Z][\w' -]{2,40}$|</?[A-Za-z][\w -]{1,30}>\s*$|[\"'`]{3}|[-=+]{5,}\s*$)")  # fmt: skip
_OPEN_FIELD = re.compile(r"[A-Za-z][\w' -]{1,30}:\W{0,3}\Z")
_CONTAINER = re.compile(
    r"<(?:chat_?history|conversation|transcript|messages|dialogue?)\b[^>]*>", re.IGNORECASE
)
_ITEM = re.compile(r"^[ \t]*(?:[-*•+]|\d{1,2}[.)]|#{1,4}) ?\S", re.MULTILINE)
#: "conform to the following schema: {…", "a JSON schema to follow: {…": how programs order a form where no field of the request does.
_WRITTEN_SCHEMA = re.compile(
    r"(?:\b(?:conform|adher|match|follow|satisf|according)\w*\b[^{}]{0,120}schema|schema[^{}]{0,20}\bfollow)[^{}]{0,200}\{\s*\"",
    re.IGNORECASE,
)
_AGENT_STEP = re.compile(r"^\W*(?:Action|Actions|Observation|Final Answer|Answer):", re.MULTILINE)
_DIFF = re.compile(r"^(?:diff --git|@@ |\+\+\+ )", re.MULTILINE)
_CURSOR = re.compile(r"<\|?fim[_▁-]|<\|?(?:cursor|suffix)\|?>|<(?:SUF|MID|CURSOR)>|\{\{FILL_HERE\}\}|^\W*SUFFIX:?", re.MULTILINE)  # fmt: skip
_GREETING = re.compile(r"\A\W*(?:ping|test|testing|hi|hello|hey|warm-?ups?)\W*\Z", re.IGNORECASE)
_SUMMARY_THERE = re.compile(
    r"\A\W{0,12}(?:this (?:session|conversation|chat|task) (?:is|was|has been|continues)\b|(?:here|the following|below|this) is (?:a|the) (?:\w+ )?summary|(?:conversation |context )?(?:summary|compaction)\b(?! request| the| this)|(?:the )?(?:previous|earlier|prior) (?:conversation|messages))",
    re.IGNORECASE,
)
_CALL = re.compile(r"\bcall the \S{0,30} ?tool\b|\bcall \S{3,40} (?:with|to)\b", re.IGNORECASE)
_CODE = re.compile(r"^[ \t]*(?:```|~~~)|</?(?:tool|function|invoke|execute)[\w:-]*[ >]", re.MULTILINE)
_TOKEN_ONLY = re.compile(r"\A\W{0,4}(?:[A-Z]{2,}(?:_[A-Z]+)+|(?<=\[)[A-Z]{4,}(?=\]))\W{0,4}\Z")


def classify(
    messages: Sequence[Message],
    request: Mapping[str, Any],
    recorded: Iterable[str] = (),
    weights: Mapping[str, float] = WEIGHTS,
) -> Classification:
    """Return main or side with reason and evidence.

    Args:
        request: the body, with or without its messages.
        recorded: evidence codes of the record (`TurnIndex.record_evidence`).
    """
    return weigh([*find_codes(messages, request), *recorded], weights)


def classify_request(
    messages: Sequence[Message],
    request: Mapping[str, Any],
    requested: TurnKind | None,
    recorded: Iterable[str] = (),
    weights: Mapping[str, float] = WEIGHTS,
) -> Classification:
    """Return the kind that the client set (`wire.headers.RequestOptions.kind`), otherwise the result of the evidence."""
    if requested is not None:
        return Classification(kind=requested, reason="client_header")
    return classify(messages, request, recorded, weights)


def weigh(codes: Iterable[str], weights: Mapping[str, float] = WEIGHTS) -> Classification:
    """Return the classification that evidence codes amount to."""
    found = dict.fromkeys(codes)
    if "known_system" in found or "same_system" in found:
        found = {code: None for code in found if not code.startswith("role_")}
    beside = _BESIDE_JSON_MODE if "json_mode" in found else _BESIDE_SCHEMA
    if found.keys() & {"reply_schema", "json_mode"} and not any(
        weights.get(c, 0) > 0 for c in found.keys() - beside
    ):
        found = {code: None for code in found if code not in _FORCED}
    evidence = sorted(
        (Evidence(code=code, weight=weights[code]) for code in found if weights.get(code)),
        key=lambda e: -abs(e.weight),
    )
    if sum(e.weight for e in evidence) <= SIDE_FROM:
        return Classification(kind=TurnKind.MAIN, reason="conversation", evidence=tuple(evidence))
    # A named topic says more than a form; among topics the strongest evidence counts.
    topics = [(_TOPIC_OF.get(e.code, ""), e) for e in evidence if e.weight > 0]
    topics.sort(key=_rank_topic)
    reason = next((topic for topic, _ in topics if topic), "text_function")
    return Classification(kind=TurnKind.SIDE, reason=reason, evidence=tuple(evidence))


def _rank_topic(found: tuple[str, Evidence]) -> tuple[bool, float, int]:
    """Return the place of a topic among those found: topics before forms, the stronger and then the more specific one first."""
    topic, evidence = found
    if topic in _FORM_TOPICS:
        return True, -evidence.weight + (0.3 if topic == "text_function" else 0.0), 0
    return False, -round(evidence.weight), _TOPIC_ORDER.get(topic, 0)


def reconsider(found: Classification, *codes: str, weights: Mapping[str, float] = WEIGHTS) -> Classification:
    """Return a classification with evidence that became known later; a kind that the client set stays."""
    if found.reason in _DECISIVE:
        return found
    return weigh([*(e.code for e in found.evidence), *codes], weights)


def is_machines(found: Classification) -> bool:
    """Whether a program wrote the newest message, as far as the evidence shows: what follows it says nothing about its kind."""
    return any(e.code in _MACHINE_CODES for e in found.evidence)


def related(found: Classification, kind: TurnKind, relation: str) -> Classification:
    """Return a classification that a relation decides, whatever the evidence amounts to."""
    weight = 2 * (1.0 if kind is TurnKind.SIDE else -1.0) * max(5.0, abs(found.score))
    kept = (e for e in found.evidence if e.code not in RELATIONS)
    return Classification(
        kind=kind, reason=relation, evidence=(Evidence(code=relation, weight=weight), *kept)
    )


def is_programs(found: Classification) -> bool:
    """Whether the form of a request is a program's, whoever continues conversations under its system prompt."""
    return any(e.code in _PROGRAM_CODES or e.code in _MACHINE_CODES for e in found.evidence)


def find_codes(messages: Sequence[Message], request: Mapping[str, Any]) -> list[str]:
    """Return the evidence codes of a request by itself. Reads a bounded part of its text."""
    answered = [i for i, m in enumerate(messages) if m.get("role") == "assistant"]
    newest = messages[answered[-1] + 1 :] if answered else messages
    asked = [m for m in newest if m.get("role") == "user"]
    texts = [content_text(m.get("content")) for m in asked]
    has_summary = bool(texts) and bool(_SUMMARY_THERE.match(texts[0][:200]))
    if has_summary and len(texts) > 1:
        texts = texts[1:]  # an existing summary precedes the request
    trailing = ""
    if answered and newest and all(m.get("role") in ("system", "developer") for m in newest):
        trailing = "\n".join(content_text(m.get("content")) for m in newest)
    words = "\n".join(t for t in (strip_client_context(_bounded(text)) for text in texts) if t)
    system = "\n".join(
        content_text(m.get("content")) for m in messages[:4] if m.get("role") in ("system", "developer")
    )
    if texts and _CONTAINER.search(texts[-1][-_FORM_CHARS:]):
        words = "\n".join(
            texts
        )  # a quoted conversation is no client context: the instruction stands before it
    ask, role = _word_codes(_ends(words or trailing or "\n".join(texts))), frozenset[str]()
    if system and len(system) <= _SHORT_SYSTEM_CHARS:
        role = _word_codes(system[:_HEAD_CHARS])
    codes = ["bias", *(f"ask_{code}" for code in sorted(ask)), *(f"role_{code}" for code in sorted(role))]
    codes += _combined(ask, role, words or trailing, is_opening=not answered)
    codes += _form_codes(words, texts, role, system, is_opening=not answered)
    is_agent = any("Thought:" in t and bool(_AGENT_STEP.search(t)) for t in (system, *texts[-1:]))
    if is_agent and "open_field" in codes:
        codes.remove("open_field")  # "Thought:" is where an agent's step begins
    structured = is_structured(request)
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    tools = request.get("tools")
    is_one_tool = not answered and isinstance(tools, list) and len(tools) == 1
    is_forced = is_one_tool and bool(role or system) and bool(_CALL.search(system[:_HEAD_CHARS]))
    checks = {
        "opening": not answered,
        "one_message": len(messages) == 1,
        "tools_offered": isinstance(tools, list) and bool(tools) and not is_forced,
        "tools_used": any(m.get("role") == "tool" or m.get("tool_calls") for m in messages[-12:]),
        "tool_results": bool(messages) and messages[-1].get("role") in ("tool", "function"),
        "long_system": len(system) > _SHORT_SYSTEM_CHARS,
        "structured": structured,
        "structured_opening": structured and not answered,
        "reply_schema": _reply_format(request) == "json_schema",
        "json_mode": _reply_format(request) == "json_object",
        "role_topic_structured": structured and bool(role & _TOPIC_CODES),
        "agent_form": is_agent,
        "written_schema": not answered and _writes_schema(_bounded("\n".join(texts))),
        "forced_tool": is_forced,
        "probe": isinstance(limit, int) and ((limit == 1 and (not answered or bool(role))) or (not answered and limit <= 5 and bool(_GREETING.match(words)))),
        "few_tokens": isinstance(limit, int) and limit <= MANY_TOKENS and ("form" in ask or bool(role)),
        "temperature_0": not answered and request.get("temperature") == 0,
        "closing_instruction": bool(trailing) and not _is_output(messages, answered),
        "machine_event": bool(texts) and is_machine_event(texts[-1]),
        "other_speaker": _is_other(messages, asked),
        "existing_summary": has_summary,
        "no_words": bool(texts) and not words and bool(texts[-1].strip()) and len(texts[-1]) > 200,
    }  # fmt: skip
    codes += [code for code, holds in checks.items() if holds]
    return codes + _crossed(codes) if "form" in codes or "awaits_next_line" in codes else codes


def _writes_schema(text: str) -> bool:
    # The word is sought first: at each of its beginnings the pattern reads on for long.
    return "schema" in text.casefold() and _WRITTEN_SCHEMA.search(text) is not None


def _crossed(codes: Iterable[str]) -> list[str]:
    found = set(codes)
    return [code for code, (needed, barred) in CROSSED.items() if needed <= found and not barred & found]


def _combined(ask: frozenset[str], role: frozenset[str], words: str, *, is_opening: bool) -> list[str]:
    """Return evidence that holds only together."""
    head = words[:120]
    topic, role_topic = bool(ask & _TOPIC_CODES), bool(role & _TOPIC_CODES)
    checks = {
        "topic_form": topic and "form" in ask,
        "topic_dialogue": topic and "dialogue" in ask,
        "topic_form_dialogue": topic and "form" in ask and "dialogue" in ask,
        "role_topic_form": role_topic and "form" in role,
        "role_topic_function": role_topic and bool(role & {"function", "task", "order"}),
        "role_order": "order" in role,
        "ask_topic_head": topic and bool(find_words(head) & ask & _TOPIC_CODES),
        "plain_topic": topic
        and len(words) < 400
        and not ask & {"dialogue", "third_person", "later", "task", "function"}
        and not role_topic,
        "works_on_history": not is_opening and topic and "dialogue" in ask and "human" not in ask,
        "handover": "later" in ask and "human" not in ask and bool(ask & {"summary", "order"}),
        "short_question": 0 < len(words) < 160
        and not ask & {"form", "task", "order", "function"}
        and not topic,
    }
    return [code for code, holds in checks.items() if holds]


def _form_codes(
    words: str, texts: Sequence[str], role: frozenset[str], system: str, *, is_opening: bool
) -> list[str]:
    """Return what the form of the newest user text is evidence of."""
    text = "\n".join(texts)
    if len(text) > 2 * _FORM_CHARS:
        text = f"{text[:_FORM_CHARS]}\n{text[-_FORM_CHARS:]}"
    if "\n" not in text and "role" not in text and ":" not in text and "<" not in text:
        return []
    lines = [line for line in text.splitlines() if line and not line.isspace()]
    starts = "\n".join([line.lstrip(_MARKUP)[:40] for line in lines]).lower().split("\n")
    named = [s for s in starts if s[:1] in _INITIALS]
    people = [s for s in named if s.startswith(_PEOPLE) and (s in _PEOPLE or _SPEAKS.match(s))]
    models = [s for s in named if s.startswith(_MODELS) and (s in _MODELS or _SPEAKS.match(s))]
    spoken = len(people) + len(models) if people and models else 0
    packed = len(_PACKED.findall(text)) > 1
    last = starts[-1]
    field = _OPEN_FIELD.search(text[-60:].rstrip())
    name = field[0].strip(" :*\n").lower() if field else ""
    is_field = normalise_line(name.rpartition(" ")[2]) in FIELDS
    # A name that began an earlier line is a speaker's; so is one word that names no field.
    is_speaker = (
        bool(name) and not is_field and (" " not in name or sum(s.startswith(name) for s in starts) > 1)
    )
    waits = (last.startswith(_MODELS) and last.endswith((":", "："))) or is_speaker
    diff = _DIFF.search(text)
    checks = {
        "quoted_speaker": bool(people or models) and not spoken and not waits,
        "dialogue_inside": (spoken > 0 or packed) and not waits,
        "only_dialogue": bool(spoken or packed) and bool(system) and not waits and (packed or len(lines) <= spoken + 2 or starts[0].startswith((*_PEOPLE, *_MODELS))),
        "container": bool(_CONTAINER.search(text)),
        "form": is_opening and sum(1 for line in lines if _SLOT.match(line)) >= 2,
        "open_field": is_opening and not waits and field is not None,
        "awaits_next_line": waits,
        "diff": is_opening and diff is not None and (diff.start() > 100 or bool(role)),
        "cursor": is_opening and bool(_CURSOR.search(text)),
        "long_instruction": len(_ITEM.findall(words[:1500])) >= 3 and len(words) > 80,
    }  # fmt: skip
    return [code for code, holds in checks.items() if holds]


@lru_cache(maxsize=512)  # system prompts recur
def _word_codes(text: str) -> frozenset[str]:
    return find_words(text)


def _bounded(text: str) -> str:
    """Return the beginning and the end of a very long text: its middle is never read."""
    return text if len(text) <= 2 * _MAX_CHARS else f"{text[:_MAX_CHARS]}\n{text[-_MAX_CHARS:]}"


def _ends(text: str) -> str:
    return (
        text
        if len(text) <= _HEAD_CHARS + _TAIL_CHARS
        else f"{text[:_HEAD_CHARS]}\n...\n{text[-_TAIL_CHARS:]}"
    )


def _is_output(messages: Sequence[Message], answered: Sequence[int]) -> bool:
    """Whether a system message after the last reply is tool output: earlier replies had such messages too, or there is code to run.

    Some agents send tool results as system messages. A client's own instructions are not kept in the history.
    """
    for one, other in pairwise(answered[-8:]):
        between = messages[one + 1 : other]
        if between and all(m.get("role") in ("system", "developer") for m in between):
            return True
    last = content_text(messages[answered[-1]].get("content"))
    return bool(_CODE.search(last[-2000:]))


def _is_other(messages: Sequence[Message], newest: Sequence[Message]) -> bool:
    """Whether the newest user message has another name than the first."""
    last = newest[-1].get("name") if newest else None
    first = next((m.get("name") for m in messages if m.get("role") == "user"), None) if last else None
    return isinstance(first, str) and isinstance(last, str) and first != last


def is_silent_reply(completion: Completion) -> bool:
    """Whether a reply is one token that only a program reads: NO_REPLY, HEARTBEAT_OK, [SILENT]."""
    return not completion.tool_calls and bool(_TOKEN_ONLY.match(strip_reasoning(completion.text)))


def is_structured(request: Mapping[str, Any]) -> bool:
    """Whether the reply must follow a JSON schema or call one given function."""
    if _reply_format(request) in ("json_schema", "json_object"):
        return True
    choice = request.get("tool_choice")
    tools = request.get("tools")
    return isinstance(choice, Mapping) or (
        choice == "required" and isinstance(tools, list) and len(tools) == 1
    )


def _reply_format(request: Mapping[str, Any]) -> object:
    """Return the type of the `response_format`."""
    form = request.get("response_format")
    return form.get("type") if isinstance(form, Mapping) else None
