"""Text that a framework wrote in a user's place: validation retries, refused calls, lint and test output, reminders. Sans-IO.

A framework that rejects a reply sends its own instruction as the next user or tool message. No person wrote it: it is no complaint and gives
no hint. It is recognised by form, because frameworks are many and their wordings change: what a validator prints, a quote of the reply, error
headings, rule lines and blocks, and prose that speaks of the reply as of an object with a format. Each form is a piece of `Evidence` with a
weight; signs of a person (first person, questions, informal spelling) count against it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from wire.regex_prefilter import PatternSet

#: Weight from which a text counts as a framework's.
THRESHOLD = 2.0
#: A text of prose alone needs more.
_PROSE_THRESHOLD = 2.5
#: What each sign of a person counts against it.
_PERSON_WEIGHT = 1.25
#: A text without any machine form must at least be this long: people write short sentences about formats too.
_MIN_PROSE_CHARS = 48
#: Longer texts are read at both ends.
_READ_CHARS = 6000
#: A shorter reply, or part of one, occurs in other texts by chance (characters without white space).
_MIN_QUOTE_CHARS = 24
_QUOTE_WINDOW = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A form that frameworks' texts have.

    Attributes:
        example: a text that has it.
        is_validation: the form is what a validator says about the reply.
    """

    name: str
    weight: float
    pattern: re.Pattern[str]
    example: str
    is_validation: bool = False


def _re(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


_REPLY = r"\b(?:response|reply|replies|responses|output|answer|completion|attempt|generation|assistant message|json|(?:tool|function|action|plan) ?calls?|arguments?|code (?:snippet|blob|block)|action input|format|plan)\b"
_FAILED = (
    r"\b(?:did ?n[o']t|does ?n[o']t|do not|was ?n[o']t|were not|is ?n[o']t|are not|has no|could ?n[o']t|cannot|can't|unable|failed|fails|failure|invalid|incorrect|malformed|empty|missing|reached|"
    r"violat\w+|rejected|unparsable|unparseable|incomplete|not (?:valid|found|permitted|allowed|parse\w*|conform\w*)|had problems|errors?)\b"
)

EVIDENCE: tuple[Evidence, ...] = (
    # -- what validators print
    Evidence(name="validator_count", weight=2.0, is_validation=True, example="2 validation errors for City",
             pattern=_re(r"^\W{0,4}(?:\w+: ?)?\d+ validation errors?\b|\bvalidation errors? for [A-Z]\w+")),
    Evidence(name="validator_details", weight=2.0, is_validation=True, example="[type=missing, input_value={}, input_type=dict]",
             pattern=_re(r"\[type=\w+, input_value=|\binput_type=\w+\]|errors\.pydantic\.dev|\bzod(?:\.dev|error)\b|json-schema\.org/")),
    Evidence(name="error_objects", weight=2.0, is_validation=True, example='[{"type": "missing", "loc": ["name"], "msg": "Field required"}]',
             pattern=_re(r"\A(?!)")),  # read by `_has_error_objects`
    Evidence(name="parser_position", weight=2.0, is_validation=True, example="Expecting value: line 1 column 1 (char 0)",
             pattern=_re(r"\bline \d+,? col(?:umn)? \d+ \(char \d+\)|\bin json at position \d+|\bunexpected (?:token|end of (?:json|input|data))\b|\bexpecting (?:value|property name|',' delimiter)")),
    Evidence(name="schema_message", weight=1.5, is_validation=True, example="'name' is a required property",
             pattern=_re(r"\bis a required property\b|\bis not of type ['\"]|\bfailed validating ['\"]|\badditional properties are not allowed\b|\b(?:field|property|parameter|argument) ['\"`]?[\w.]+['\"`]? (?:is )?(?:required|missing)\b|\bmust have required property\b|\bdata(?:/[\w/]+)? must \b|\binput should be \w|\bmissing (?:\d+ )?required (?:\w+ )?(?:argument|parameter|field)|\bunexpected keyword argument\b|\bmissing value for required\b")),
    Evidence(name="validation_head", weight=1.5, is_validation=True, example="Validation feedback:",
             pattern=_re(r"\A\W{0,6}(?:\w+ ){0,3}?(?:validation|parsing|parser|parse|format|schema|guardrail)(?: \w+)? ?(?:errors?|feedback|failed|failure|problem|issues?|exception)\b[^\n]{0,40}?[:.\n]|^#{1,4} .{0,30}\bvalidation\b")),
    # -- error headings and machine lines
    Evidence(name="error_head", weight=1.0, example="[ERROR] You did not use a tool",
             pattern=_re(r"\A\W{0,4}(?:call id: ?\S+\s+)?(?:\[?(?:\w+[ _])?(?:error|failure|failed|warning|rejected|fatal|exception)\]?s? ?(?:[:\]!.]|found|\n|-)|[\w.]*(?:Error|Exception)\b ?[:(])|^#{1,4} .{0,40}\b(?:errors?|failed|failure)\b|^[\w ]{0,20}error(?: messages?| details)?: ?\S?")),
    Evidence(name="error_opening", weight=1.0, example="Failed to use tool `population`: city is missing.",
             pattern=_re(r"\A\W{0,4}(?:\w+: )?(?:an? )?(?:encountered |unexpected )?(?:error|failed to|failure|could not|unable to|invalid|bad/\w+|unknown|missing|no [\w ]{2,24} (?:detected|found|was performed)|no valid \w+ (?:was|were) \w+|expected (?:exactly|at least|at most) \w+|[\w ]{2,24} is not allowed)\b|^ERROR:?$")),
    Evidence(name="failed_opening", weight=1.0, example="Constraint not satisfied: answer must be 'yes'.",
             pattern=_re(r"\A\W{0,4}(?:[\w./]+ ){1,4}(?:failed|violated|rejected|not satisfied)(?: to \w+)?[^\n:.]{0,24}[:.\n]")),
    Evidence(name="role_head", weight=1.0, example="[system] The previous assistant message did not contain a tag.",
             pattern=_re(r"\A\[(?:system|framework|validator|harness|tool|supervisor|runtime|orchestrator)\]")),
    Evidence(name="nothing_found", weight=1.5, example="No function call was found in your last message.",
             pattern=_re(r"\bno (?:\w+[ -]){0,2}?(?:calls?|blocks?|tags?|json|objects?|actions?) (?:(?:was|were|is|could be) )?(?:found|detected|present)\b")),
    Evidence(name="numbered_rules", weight=0.5, example="1. No prices.", pattern=re.compile(r"^\d+[.)] \S", re.MULTILINE)),
    Evidence(name="expression", weight=0.5, example="len(summary) <= 100", pattern=re.compile(r"\b\w+\([^)\n]{0,40}\) ?[<>=!]=? ?\S")),
    Evidence(name="error_name", weight=1.0, example="UnifiedDiffNoMatch: hunk failed to apply!",
             pattern=re.compile(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)*(?:Error|Exception|Failure|Mismatch|NoMatch|NoExactMatch): ")),
    Evidence(name="identifier", weight=0.5, example="not the JSON_SCHEMA", pattern=re.compile(r"\b[A-Za-z]{2,}_[A-Za-z]{2,}\w*\b|`\w[^`\n]*`")),
    Evidence(name="trace", weight=1.0, example="Traceback (most recent call last):",
             pattern=_re(r"^traceback \(most recent call last\):|^[\w./-]+\.\w{1,4}:\d+(?::\d+)?:? |\bexit ?code:? -?\d+|^exitcode: ")),
    Evidence(name="search_replace", weight=1.5, example="<<<<<<< SEARCH", pattern=_re(r"^<{7} SEARCH|^>{7} REPLACE")),
    Evidence(name="rule_lines", weight=1.0, example="-----\n{}\n-----", pattern=re.compile(r"^[-=*_#]{5,}\s*$[\s\S]*?^[-=*_#]{5,}\s*$", re.MULTILINE)),
    Evidence(name="error_element", weight=2.0, example="<app:validation_errors>…</app:validation_errors>",
             pattern=_re(r"<((?:[\w-]+[:_-])*(?:error|errors|exception|failure|retry|reask|invalid|validation|violation|mismatch)(?:[:_-][\w-]+)*)(?: [^<>]*)?>[\s\S]*?</\1>")),
    Evidence(name="form_lines", weight=1.0, example="Thought: …\nAction: …\nAction Input: …",
             pattern=_re(r"^\W{0,3}(?:thought|action|final answer|action input|observation)s?: ?.*\n(?:.*\n){0,3}?\W{0,3}(?:action|final answer|action input|observation|code|answer): ?")),
    Evidence(name="block", weight=0.5, example="```json\n{}\n```", pattern=_re(r"^```|^\s*[{\[]\s*(?:\"|\{|$)|=\{|\bschema\b.{0,20}[:\n]\s*\{")),
    Evidence(name="placeholder", weight=0.5, example="<your answer>", pattern=_re(r"<(?:your|the|what|tool|action|result|json|param)[\w ]{0,40}>|\bpath/to/|\byour_\w+\b|\{\{.*?\}\}")),
    Evidence(name="name_list", weight=0.75, example="try one of [search, weather]",
             pattern=_re(r"\b(?:one of|available|valid|known|allowed|accepts?|supported|permitted|select \w[\w ]{0,20} from|select from)\b[^\n]{0,30}?[:\[]\s*[\['\"`{\w]+[\w'\"`-]*(?:, ?|\]|\n|$)")),
    Evidence(name="unknown_call", weight=1.5, example="Tool lookup not found",
             pattern=_re(r"\b(?:tool|function|action)s? (?:name(?:d)? )?[:'\"`]*[\w.-]+[:'\"`]* (?:is |was |does )?(?:not|n't) (?:a )?(?:found|valid|exist|available|registered|defined|known|recogni[sz]ed)|\b(?:unknown|unrecogni[sz]ed|invalid|no such|undefined) (?:tool|function|action)\b|\bis not a valid tool\b")),
    # -- prose of a program to a model
    Evidence(name="automated", weight=2.5, example="(This is an automated message)",
             pattern=_re(r"\b(?:automat(?:ed|ic(?:ally)?)|auto-generated|system-generated)\b.{0,30}\b(?:message|feedback|generated|check|notice|response|reply|reminder|retry)|\bnot (?:a message )?from (?:the|a) user\b|\bnot part of (?:the )?user\b")),
    Evidence(name="reply_failed", weight=1.5, example="Your previous response could not be parsed.",
             pattern=_re(rf"\b(?:your|the|previous|last|prior|above|following|this)\b(?: \w+){{0,3}} {_REPLY}[^.\n]{{0,60}}?{_FAILED}|{_FAILED}[^.\n]{{0,40}}?\b(?:your|the|previous|last|prior|parse)\b(?: \w+){{0,3}} {_REPLY}|\b(?:could not|cannot|failed to|unable to) (?:parse|decode|deseriali[sz]e|validate|extract)\b")),
    Evidence(name="you_failed", weight=1.0, example="You did not call a tool.",
             pattern=_re(r"\byou (?:forgot to|did ?n[o']t|did not|have not|failed to|must(?: now| not| always| only)?) (?:use|call|return|provide|include|output|respond|produce|follow|invoke|emit|end|complete|contain|make|correct|choose|select|specify|always)\b")),
    Evidence(name="again", weight=0.75, example="Please try again.",
             pattern=_re(r"\b(?:try(?:ing)? again|retry(?:ing)?|re-?generate|re-?ask|re-?submit|re-?send|respond again|call (?:it|the \w+) again|re-?writ(?:e|ing)|fix your mistakes?|previous errors?|(?:choose|select|pick|use|try) (?:a different|another) \w+)\b")),
    Evidence(name="correction_order", weight=0.75, example="Recall the function correctly, fix the errors",
             pattern=_re(r"\b(?:fix|correct|resolve|address|repair)\b(?: \w+){0,3} (?:errors?|issues?|problems?|mistakes?|values?|query|syntax|json|response|reply|format|output|violations?)\b|\bcorrects? (?:this|your)\b|\brecall the function\b")),
    Evidence(name="format_order", weight=0.75, example="Respond with a valid JSON object",
             pattern=_re(r"\b(?:respond|reply|return|output|answer|generate|provide|produce|include|use|call|issue|choose|select|ensure|make sure)\b[^.\n]{0,50}?\b(?:valid|exactly|only|schema|json|tool|function|format|pattern|tags?|xml|yaml|code block|according to|conform\w*|following)\b")),
    Evidence(name="rule", weight=0.5, example="The filename must be alone on the line.",
             pattern=_re(r"\bmust (?:be|have|match|include|contain|exactly|always|conform|only)\b|\bshould (?:have|be) (?:of )?(?:this|one of|the following)\b|\b(?:the|this|following|required|expected|right|same) (?:form|format|structure|pattern|schema)\b|\bas a reminder\b|\b(?:only|exact) \w+ (?:of|in|from)\b")),
    Evidence(name="capital_order", weight=0.75, example="Respond with ONLY the name, DO NOT explain.",
             pattern=re.compile(r"\b[a-z]+ (?:ONLY|DO NOT|MUST|NEVER|ALWAYS|EXACTLY)\b")),
    Evidence(name="format_words", weight=0.5, example="the JSON schema",
             pattern=_re(r"\b(?:json|schema|xml|yaml|regex|pattern|pars(?:e|ed|er|ing|eable)|valid(?:ation|ator)?|tool|function|code block|format|arguments?|parameters?|fields?|constraints?|tokens?)\b")),
    Evidence(name="agent_voice", weight=1.25, example="I encountered an error while trying to use the tool.",
             pattern=_re(r"\A\W{0,4}(?:sorry, )?i (?:encountered an error|was given the following|did ?n[o']t use|could not (?:parse|use)|tried reusing|got the following error while)\b|\bi must\b")),
)  # fmt: skip

_EVIDENCE = PatternSet((e.pattern, e) for e in EVIDENCE)

#: Signs of a person, in the prose that is left without machine lines.
_PERSON = (
    re.compile(r"\b(?:I'?m|I've|I'?d|I'?ll|I|me|my|mine|we|our|us)\b"),
    re.compile(r"[?？]"),
    re.compile(r"\b(?:pls|plz|thx|thanks|hey|hi|hello|wtf|lol|hmm+|nope|yeah|yep|ok(?:ay)?|ugh|dude|no(?=[,.!])|still(?! has)|sorry|actually|just|btw|imo)\b", re.IGNORECASE),
    re.compile(r"\A(?:Error: )?[a-zäöüéèñ]|[.!?] [a-z]\w* (?:is|it|to|you|that|was)\b"),
    re.compile(r"!{2,}|!\?"),
    re.compile(r"[\U0001F300-\U0001FAFF]"),
    re.compile(r"\b(?:it's|that's|you're|isn't|aren't|there's|what's|you've|let's not)\b", re.IGNORECASE),
)  # fmt: skip
#: What a program may write in the first person or with an exclamation mark.
_NO_PERSON = re.compile(
    r"\bi must\b|now let's retry|\A\W{0,4}(?:sorry, )?i (?:encountered|was given|did ?n[o']t use|ran)\b",
    re.IGNORECASE,
)
_BLOCKS = re.compile(
    r"^(`{3,}|~{3,}).*?^\1|<([A-Za-z][\w:.-]*)(?: [^<>]*)?>.*?</\2>", re.MULTILINE | re.DOTALL
)
_MACHINE_LINE = re.compile(
    r"^\s*(?:[-=*_#~]{4,}\s*$|[{}\[\]\"'<>|/\\$`].*|#{1,4} .*|[\w./-]+:\d+.*|File \".*|exit ?code.*|\S*(?:Error|Exception)\b.*|traceback .*|(?!.*\b(?:I|my|me|you)\b)[\w ./]{1,30}: *\S*\s*$|\s{4,}\S.*|[A-Z][\w ]{0,20}: *[{\[\"].*|https?://\S+.*)",
    re.IGNORECASE,
)  # fmt: skip
_OBJECT = re.compile(r"[\[{]")
_ERROR_PLACE = frozenset({"loc", "path", "instancePath", "instance_path", "param", "pointer", "field"})
_ERROR_TEXT = frozenset({"msg", "message", "error", "detail", "reason", "error_messages", "error_message"})


def framework_retry(text: str, reply: str = "") -> str | None:
    """Return why a message is a framework's and no person's: "validation" or "retry"; None for a person's message.

    Args:
        reply: the reply before it, which frameworks quote.
    """
    if len(text) > 2 * _READ_CHARS:
        text = f"{text[:_READ_CHARS]}\n{text[-_READ_CHARS:]}"
    text = text.strip()
    if len(text) < 16:
        return None
    found = [e for e in _EVIDENCE.candidates(text) if e.pattern.search(text) is not None]
    names = {e.name for e in found}
    weight = sum(e.weight for e in found)
    is_validation = any(e.is_validation for e in found)
    if _has_error_objects(text):
        weight, is_validation = weight + 2.0, True
        names.add("error_objects")
    if not names:
        return None
    prose = _prose(text, reply)
    quoted = quoted_share(text, reply)
    if quoted >= 0.8 and names and not re.search(r"^>", text, re.MULTILINE):
        weight += 2.0
    if not prose and names & _MACHINE_FORMS:
        weight += 1.5
    has_form = bool(names & _MACHINE_FORMS) or quoted >= 0.8
    if not has_form and len(text) < _MIN_PROSE_CHARS:
        return None
    weight -= _signs_of_person(prose) * _PERSON_WEIGHT
    if weight < (THRESHOLD if has_form else _PROSE_THRESHOLD):
        return None
    return "validation" if is_validation else "retry"


#: Forms that prose alone does not have.
_MACHINE_FORMS = frozenset(
    {
        "validator_count", "validator_details", "error_objects", "parser_position", "schema_message", "validation_head", "error_head",
        "trace", "error_name", "error_opening", "failed_opening", "role_head", "search_replace", "rule_lines", "error_element", "form_lines", "automated", "unknown_call",
    }
)  # fmt: skip


def _prose(text: str, reply: str) -> str:
    """Return the sentences of a text, without blocks, elements, machine lines and lines of the reply."""
    theirs = {line.strip() for line in reply.splitlines()}
    kept = [line.strip() for line in _BLOCKS.sub("\n", text).splitlines() if not _MACHINE_LINE.match(line)]
    return "\n".join(line for line in kept if line and line not in theirs)


def _signs_of_person(prose: str) -> int:
    bare = _NO_PERSON.sub("", prose)
    return min(4, sum(pattern.search(bare) is not None for pattern in _PERSON))


def _has_error_objects(text: str) -> bool:
    """Whether a text contains JSON objects that each name a place and what is wrong there."""
    return any(_describes_error(value) for value in json_values(text))


def _describes_error(value: Any) -> bool:
    if isinstance(value, list):
        return any(_describes_error(item) for item in value[:4])
    if not isinstance(value, dict):
        return False
    keys = value.keys()
    return bool(keys & _ERROR_TEXT and keys & _ERROR_PLACE) or bool(
        keys & {"error_messages", "incorrect_value"} and len(keys) > 1
    ) or any(_describes_error(item) for item in list(value.values())[:8])  # fmt: skip


def json_values(text: str, limit: int = 4) -> Iterator[Any]:
    """Yield the JSON arrays and objects inside a text, the first ones only."""
    decoder = json.JSONDecoder()
    position = tries = 0
    while tries < 16 and limit and (match := _OBJECT.search(text, position)) is not None:
        tries += 1
        try:
            value, position = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            position = match.end()
            continue
        limit -= 1
        yield value


def quoted_share(text: str, reply: str) -> float:
    """Return the share of a reply that a text repeats, in [0, 1]; 0 for a reply too short to tell."""
    mine, theirs = _bare(text), _bare(reply)
    if len(theirs) < _MIN_QUOTE_CHARS:
        return 0.0
    if theirs in mine:
        return 1.0
    starts = range(0, max(1, len(theirs) - _QUOTE_WINDOW + 1), _QUOTE_WINDOW)
    hits = sum(theirs[i : i + _QUOTE_WINDOW] in mine for i in starts)
    # Validators cut what they quote: its beginning is enough.
    return max(hits / len(starts), 0.8 if theirs[:_QUOTE_WINDOW] in mine else 0.0)


def _bare(text: str) -> str:
    """Return a text without white space and escapes: JSON and Python quote differently."""
    return re.sub(r"\\[nrt]|\\|\s+|[\"'`]", "", text)
