"""Classification of a turn: main (the user or their agent) or side (the client's own requests: titles, summaries, memory). Sans-IO.

Relations to other requests decide where there are any (`recorder.kinds`). This module reads the rest: a lone opening, a newest turn, and what the
gateway sees before anything follows. A request's score is the sum of at most twenty weights (`weights.json`, log-odds of a side turn), one for
each group of evidence found (`GROUPS`): its form (a written-out dialogue, a form to fill in, a forced schema, tools), what it continues, and
words (`wire.evidence`) in the newest user text and in a short system prompt, nowhere else.

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
from store.values import TurnKind
from wire.evidence import MACHINES, TOPICS, find_words
from wire.line_text import FIELDS, normalise_line
from wire.user_text import is_machine_event, strip_client_context

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

#: Group of evidence -> weight; `bias` is the score of a request without any evidence.
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


#: Topics that people seldom ask for; a topic that they ask for too counts only in a program's form or about a conversation.
_PROGRAMS_TOPICS = frozenset({"label", "next_words", "query", "edit", "merge", "plan"})
#: Topics that alone are a program's as a short system prompt.
_ROLES = _PROGRAMS_TOPICS | {"title", "commit", "speaker"}
#: Words of the forms in which programs order.
_ORDERS = frozenset({"form", "task", "order", "function", "unanswered", "later"})
_ABOUT = frozenset({"third_person", "dialogue"})
_TOPIC_CODES = {p.code: p for p in TOPICS}
_MACHINE_WORDS = {p.code: p for p in MACHINES}

#: Evidence that is no word: code -> (group, topic of a side turn, meaning).
_STRUCTURE: Mapping[str, tuple[str, str, str]] = {
    "bias": ("bias", "", "any request"),
    "machine_event": ("machine", "heartbeat", "an envelope without user text"),
    "other_speaker": ("machine", "agent_to_agent", "the newest message has another speaker than the first"),
    "closing_instruction": ("machine", "closing_instruction", "only the client's instruction follows the last reply"),
    "probe": ("machine", "probe", "room for one token on a fresh request or under an instruction, or for a few after a greeting"),
    "cursor": ("machine", "autocomplete", "text around a cursor"),
    "role_topic_order": ("role_topic_order", "", "a short system prompt gives a client's topic and the form of the answer"),
    "third_person": ("third_person", "", "the newest text has a client's topic and speaks of the user in the third person"),
    "only_dialogue": ("dialogue", "quoted_conversation", "the newest message is only a written-out dialogue; the instruction stands elsewhere"),
    "dialogue_inside": ("dialogue", "quoted_conversation", "a written-out dialogue inside one message"),
    "container": ("dialogue", "quoted_conversation", "a conversation in a container inside one message"),
    "form": ("form", "text_function", "a filled-in form"),
    "quoted_speaker": ("form", "quoted_conversation", "a line of one speaker inside one message"),
    "open_field": ("form", "text_function", "the prompt ends with the name of an empty field"),
    "diff": ("form", "commit_message", "a diff after an instruction"),
    "long_instruction": ("list", "text_function", "a newest message that lists instructions"),
    "forced": ("structured", "structured_one_off", "a fresh request must be answered by one given call"),
    "written_schema": ("machine", "structured_one_off", "an order to follow a JSON schema written out on a fresh request"),
    "reply_format": ("structured", "structured_one_off", "a `response_format` on a fresh request, beside other evidence of a program"),
    "awaits_next_line": ("answer", "", "the prompt ends where the next line of a dialogue begins"),
    "agent_form": ("answer", "", "an agent's steps in text: lines for thought, action and final answer"),
    "existing_summary": ("answer", "", "the newest text begins with a summary that exists already"),
    "same_form": ("answer", "", "it writes out a recorded main turn in that turn's own form, under the same system prompt"),
    "tools": ("tools", "", "tools are offered, used, or bring results"),
    "tools_followed": ("tools", "", "a later request brought the results of tools that it called"),
    "new_system": ("new_system", "text_function", "the history is a recorded one, the system prompt is another"),
    "fewer_tools": ("new_system", "text_function", "the history is a recorded one, its tools are not offered any more"),
    "extends_main": ("extends_main", "", "the request continues a recorded main turn"),
    "extends_side": ("extends_side", "", "the request continues a recorded side turn"),
}  # fmt: skip
#: The same for words in the newest text (`ask_`), those in a program's form (`order_`) or about a conversation (`about_`), and in a short system
#: prompt (`role_`).
_WORDS: Mapping[str, tuple[str, str, str]] = {
    **{f"ask_{c}": ("machine", p.topic, f"the newest text: {p.meaning}") for c, p in _MACHINE_WORDS.items()},
    **{f"role_{c}": ("machine", _MACHINE_WORDS[c].topic, f"the system prompt: {_MACHINE_WORDS[c].meaning}") for c in ("background", "memory_job")},
    **{f"ask_{c}": ("programs_topic", _TOPIC_CODES[c].topic, f"the newest text: {_TOPIC_CODES[c].meaning}") for c in _PROGRAMS_TOPICS},
    "ask_speaker": ("machine", "speaker_selection", "the newest text: the next speaker in a group of agents"),
    **{f"order_{c}": ("topic_order", p.topic, f"the newest text: {p.meaning}, in a program's form") for c, p in _TOPIC_CODES.items()},
    **{f"about_{c}": ("topic_about", p.topic, f"the newest text: {p.meaning}, about a conversation") for c, p in _TOPIC_CODES.items()},
    **{f"role_{c}": ("role_topic", p.topic, f"the system prompt: {p.meaning}") for c, p in _TOPIC_CODES.items()},
    "ask_function": ("function", "", "the newest text makes the model a text function"),
    "role_function": ("function", "", "the system prompt makes the model a text function"),
    "role_order": ("function", "", "the system prompt begins with an order about a text"),
    "role_unanswered": ("function", "", "the system prompt: the text is not to be answered"),
    "ask_human": ("human", "", "the newest text: a person's pronouns and phrases"),
    "ask_answer": ("answer", "", "the newest text: the user's question is to be answered"),
    "ask_form": ("answer_form", "", "the newest text says in which form to answer"),
}  # fmt: skip
_EVIDENCE = {**_STRUCTURE, **_WORDS}
#: Evidence code -> group, which has the weight.
GROUP_OF: Mapping[str, str] = {code: group for code, (group, _, _) in _EVIDENCE.items()}

#: Evidence that only linking finds; it decides alone (`recorder.linking`), and no later message outweighs it.
LINKED: Mapping[str, str] = {
    "guardrail": "checks a message instead of answering it",
    "agent_to_agent": "sent by another agent, not by the user",
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
    "passed_over": "people continue the replies of another system prompt to the same text, and none of this one's",
    "beside_main": "the same text was sent at the same time without this form or limit",
}
_DECISIVE = frozenset({"client_header", *RELATIONS})
#: evidence or reason code -> meaning, for display.
MEANINGS: Mapping[str, str] = {
    **{p.topic: p.meaning for p in (*TOPICS, *MACHINES) if p.topic},
    **{topic: meaning for _, topic, meaning in _STRUCTURE.values() if topic},
    **{code: meaning for code, (_, _, meaning) in _EVIDENCE.items()},
    **LINKED,
    **RELATIONS,
    "same_system": "people continue conversations under this system prompt, so that its words are no evidence",
    "conversation": "no evidence of a side turn outweighs the rest",
    "works_on_recorded_exchange": "it quotes a recorded question with its answer and does not wait for the next line",
    "works_on_recorded_reply": "it quotes a recorded reply, and a schema forces its own",
    "side_tool_results": "only tool results or a framework's text follow a side turn",
}

_FORM_TOPICS = frozenset({"text_function", "quoted_conversation", "structured_one_off", "judge"})
_MACHINE_CODES = frozenset({"machine_event", "other_speaker", *(f"ask_{code}" for code in _MACHINE_WORDS)})
#: Groups of evidence that are no person's under any system prompt.
_PROGRAM_GROUPS = frozenset({"machine", "dialogue", "form", "structured"})
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
    """Return the classification that evidence codes amount to; each group counts once."""
    found = dict.fromkeys(codes)
    if "known_system" in found or "same_system" in found:
        found = {code: None for code in found if not code.startswith("role_")}
    groups: dict[str, str] = {}
    for code in found:
        if code in _EVIDENCE:
            groups.setdefault(_EVIDENCE[code][0], code)
    if "machine" in groups:  # whatever the request offers and continues
        groups = {
            group: code for group, code in groups.items() if group not in ("bias", "tools", "extends_main")
        }
    if groups.get("structured") == "reply_format" and not any(
        weights.get(group, 0) > 0 for group in groups.keys() - {"structured", "answer_form"}
    ):  # people's programs send one too
        del groups["structured"]
    evidence = sorted(
        (Evidence(code=code, weight=weights[group]) for group, code in groups.items() if weights.get(group)),
        key=lambda e: -abs(e.weight),
    )
    if sum(e.weight for e in evidence) <= SIDE_FROM:
        return Classification(kind=TurnKind.MAIN, reason="conversation", evidence=tuple(evidence))
    topics = [t for e in evidence if e.weight > 0 and (t := _EVIDENCE[e.code][1])]
    # A clock or a topic says more than a form.
    topics.sort(key=lambda topic: (topic in _FORM_TOPICS, topic == "judge", topic == "text_function"))
    return Classification(
        kind=TurnKind.SIDE, reason=topics[0] if topics else "text_function", evidence=tuple(evidence)
    )


def reconsider(found: Classification, *codes: str, weights: Mapping[str, float] = WEIGHTS) -> Classification:
    """Return a classification with evidence that became known later; what the client set or a relation decided stays."""
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
    """Whether the form of a request is a program's, even where people continue conversations under its system prompt."""
    return any(e.code in _EVIDENCE and _EVIDENCE[e.code][0] in _PROGRAM_GROUPS for e in found.evidence)


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
    stripped = [t for t in (strip_client_context(_bounded(text)) for text in texts) if t]
    words = "\n".join(stripped[-1:] if answered else stripped)  # what precedes it was most often asked before
    system = "\n".join(
        content_text(m.get("content")) for m in messages[:4] if m.get("role") in ("system", "developer")
    )
    if texts and _CONTAINER.search(texts[-1][-_FORM_CHARS:]):
        words = "\n".join(
            texts
        )  # a quoted conversation is no client context: the instruction stands before it
    role = _word_codes(system[:_HEAD_CHARS]) if len(system) <= _SHORT_SYSTEM_CHARS else frozenset[str]()
    form = _form_codes(words, texts, system, role, is_opening=not answered)
    is_agent = any("Thought:" in t and bool(_AGENT_STEP.search(t)) for t in (system, *texts[-1:]))
    if is_agent and "open_field" in form:
        form.remove("open_field")  # "Thought:" is where an agent's step begins
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    tools = request.get("tools")
    is_one_tool = not answered and isinstance(tools, list) and len(tools) == 1
    is_ordered_call = is_one_tool and bool(_CALL.search(system[:_HEAD_CHARS]))
    checks = {
        "closing_instruction": bool(trailing) and not _is_output(messages, answered),
        "machine_event": bool(texts) and is_machine_event(texts[-1]),
        "other_speaker": _is_other(messages, asked),
        "probe": isinstance(limit, int) and ((limit == 1 and (not answered or bool(role))) or (not answered and limit <= 5 and bool(_GREETING.match(words)))),
        "forced": not answered and (_is_forced(request) or is_ordered_call),
        "written_schema": not answered and _writes_schema(_bounded("\n".join(texts))),
        "reply_format": not answered and _has_reply_format(request),
        "agent_form": is_agent,
        "existing_summary": has_summary,
        "tools": not answered and not is_ordered_call and ((isinstance(tools, list) and bool(tools)) or any(m.get("role") == "tool" or m.get("tool_calls") for m in messages[-12:])),
    }  # fmt: skip
    codes = ["bias", *(code for code, holds in checks.items() if holds)]
    ask = _word_codes(_ends(words or trailing or "\n".join(texts)))
    structured = not answered and is_structured(request)
    return [*codes, *_topic_codes(ask, role, set(form), is_structured=structured), *form]


def _topic_codes(
    ask: frozenset[str], role: frozenset[str], form: set[str], *, is_structured: bool
) -> list[str]:
    """Return the evidence of words; of several topics the first."""
    topic, role_topic = (next((c for c in _TOPIC_CODES if c in found), "") for found in (ask, role))
    programs = next((c for c in _TOPIC_CODES if c in ask & _PROGRAMS_TOPICS), "")
    is_ordered = is_structured or bool(role & _ORDERS - {"later"})
    if not topic and {"later", "order"} <= ask and "human" not in ask:
        topic = "summary"  # notes for a context that continues without its beginning
    checks = {
        **{f"ask_{code}": code in ask for code in _MACHINE_WORDS},
        "role_background": "background" in role,
        "role_memory_job": "memory_job" in role,
        f"about_{topic}": topic and bool(ask & _ABOUT or "later" in ask or form & {"dialogue_inside", "only_dialogue", "container"}),
        f"order_{topic}": topic and bool(ask & _ORDERS or form & {"form", "open_field"}),
        f"ask_{programs}": programs,
        "ask_speaker": "speaker" in ask,
        f"role_{role_topic}": role_topic and (is_ordered or role_topic in _ROLES),
        "role_topic_order": role_topic and is_ordered,
        "third_person": topic and "third_person" in ask,
        "ask_function": "function" in ask,
        **{f"role_{code}": code in role for code in ("function", "order", "unanswered")},
        **{f"ask_{code}": code in ask for code in ("human", "answer", "form")},
    }  # fmt: skip
    return [code for code, holds in checks.items() if holds]


def _writes_schema(text: str) -> bool:
    # The word is sought first: at each of its beginnings the pattern reads on for long.
    return "schema" in text.casefold() and _WRITTEN_SCHEMA.search(text) is not None


def _form_codes(
    words: str, texts: Sequence[str], system: str, role: frozenset[str], *, is_opening: bool
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
        "diff": is_opening and diff is not None and (diff.start() > 100 or bool(role & _TOPIC_CODES.keys())),
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


def is_structured(request: Mapping[str, Any]) -> bool:
    """Whether the reply must follow a JSON schema or call one given function."""
    return _has_reply_format(request) or _is_forced(request)


def _has_reply_format(request: Mapping[str, Any]) -> bool:
    form = request.get("response_format")
    return isinstance(form, Mapping) and form.get("type") in ("json_schema", "json_object")


def _is_forced(request: Mapping[str, Any]) -> bool:
    choice, tools = request.get("tool_choice"), request.get("tools")
    return isinstance(choice, Mapping) or (
        choice == "required" and isinstance(tools, list) and len(tools) == 1
    )
