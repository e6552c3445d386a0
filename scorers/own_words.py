"""Which parts of a message are the person's own words, and its clauses. Sans-IO.

A message may carry text of others: code, markup, JSON, logs, transcripts, mails, quotations, and what a task is about ("Translate: …").
`hide_foreign` replaces it, character for character, so that an offset means the same place before and after.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from scorers import lexicon
from scorers.reactions import read_reaction, starts_task

#: Stands for text of others; the first characters of what is hidden. The training data hide words in the same way.
HIDDEN = "qxzvq"
#: Only so much of a message is cut into clauses, in characters: wishes stand at its beginning, pasted documents state none.
MAX_READ = 4000
#: Clauses of a message at most.
_MAX_CLAUSES = 40

#: Blocks: what is not written to the assistant, whatever its words.
_BLOCK = re.compile(
    r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)"
    r"|<(?P<tag>[a-zA-Z][\w-]*)\b[^<>]*>.*?(?:</(?P=tag)\s*>|\Z)|<!--.*?(?:-->|\Z)"
    r"|(?m:^\s*>[^\n]*$)"
    r"|[{\[]\s*\"[^\n]*?\"\s*[:,].*?[}\]](?=\s*(?:$|\n))"
    r"|(?m:^\s*(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:|Traceback \(most|File \"|at \S+\(|>>> |\$ )[^\n]*(?:\n\w[\w ]{0,20}:[^\n]*)*)",
    re.DOTALL,
)
#: Two lines or more that begin with a name: a chat that was pasted.
_TRANSCRIPT = re.compile(
    r"(?m:^[ \t]*[^\W\d_][\w ]{0,20}:[ \t]+\S[^\n]*$)(?:\n+(?m:^[ \t]*[^\W\d_][\w ]{0,20}:[ \t]+\S[^\n]*$))+"
)
#: A mail: from its salutation on.
_MAIL = re.compile(rf"(?im:^[ \t]*(?:{lexicon.SALUTATION})\b[^\n]{{0,40}}[,!:،，]?[ \t]*\n)")
_QUOTED = re.compile(
    r"\"[^\"\n]*\s[^\"\n]*\"|“[^”\n]*\s[^”\n]*”|„[^“”\n]*\s[^“”\n]*[“”]|«[^»\n]*\s[^»\n]*»|「[^」\n]{3,}」"
    r"|(?<!\w)['‘][^'’\n]*\s[^'\n]*['’](?!\w)"
)
_WORD = re.compile(r"[^\W_]")
#: Where a clause ends: after a sentence, a colon or a line.
_END = re.compile(r"[.!?…。！？]+[\"'”»)\]]*(?=\s|$|[぀-ヿ㐀-鿿])|:(?=\s)|\n+|;(?=\s)")
#: Words that join two clauses cut anywhere; "only" and the like just behind punctuation: "give only code" is one clause.
_CONTRAST = re.compile(
    rf"(?:(?:[,;]|\s[-–—])\s|\s(?=(?:{lexicon.JOINT})\b))(?=(?:{lexicon.CONTRAST})\b)|[,，、]?\s?(?={lexicon.CONTRAST_UNSPACED})|\s[-–—]+\s",
    re.IGNORECASE,
)
_WHEN = re.compile(
    rf"(?:(?:{lexicon.BEFORE_WHEN})\s)?(?:{lexicon.WHEN}|{lexicon.SCOPE_WORDS['once']}|{lexicon.SCOPE_WORDS['lasting']})\W*",
    re.IGNORECASE,
)
_LEADING = re.compile(
    rf"(?:[\s,;:.!?–—-]|(?=\w{{2}})(?:{lexicon.JOINT})\b(?=\s)|{lexicon.JOINT_UNSPACED}|[-*•]\s)+",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Clause:
    """A sentence or a part of one: ``message[start:end]``, with the text around it, in which foreign text is hidden."""

    start: int
    end: int
    text: str
    before: str
    after: str


def hide_foreign(text: str) -> str:
    """Return a message of the same length in which the text of others is hidden. A message that is nothing but a quotation stays."""
    found = text
    for pattern in (_BLOCK, _TRANSCRIPT):
        found = pattern.sub(lambda match: _hidden(match.group()), found)
    mail = _MAIL.search(found)
    if mail and _WORD.search(found[: mail.start()]):
        found = found[: mail.start()] + _hidden(found[mail.start() :])
    head, colon, about = found.partition(":")
    if colon and about.strip() and starts_task(head) and read_reaction(head).value is None:
        found = head + colon + _hidden(about)
    unquoted = _QUOTED.sub(lambda match: _hidden(match.group()), found)
    return unquoted if _WORD.search(unquoted.replace(HIDDEN, "")) else found


def _hidden(text: str) -> str:
    """Hide a text; what is too short for the mark becomes spaces."""
    bare = text.strip()
    if len(bare) < len(HIDDEN):
        return " " * len(text)
    start = text.index(bare)
    return " " * start + HIDDEN + " " * (len(text) - start - len(HIDDEN))


def clauses(text: str) -> list[Clause]:
    """Cut a message at the ends of sentences, at colons, and where a contrast begins; text of others is no clause."""
    shown = hide_foreign(text[:MAX_READ])
    cuts = [0]
    for match in _END.finditer(shown):
        cuts.append(match.end())
    cuts.append(len(shown))
    spans: list[tuple[int, int]] = []
    for start, end in itertools.pairwise(cuts):
        spans += _contrasts(shown, start, end)
    found = []
    for start, end in spans[:_MAX_CLAUSES]:
        opening = _LEADING.match(shown, start, end)
        if opening and _WORD.search(shown, opening.end(), end):
            start = opening.end()
        while end > start and shown[end - 1].isspace():
            end -= 1
        if _WORD.search(shown[start:end].replace(HIDDEN, "")):
            found.append(Clause(start, end, shown[start:end], shown[:start].strip(), shown[end:].strip()))
    return found


def _contrasts(shown: str, start: int, end: int) -> list[tuple[int, int]]:
    """Cut a sentence where a contrast begins. A word alone, and what says only when a wish holds, stay with the words before."""
    cuts = [start, *(match.end() for match in _CONTRAST.finditer(shown, start, end)), end]
    spans: list[tuple[int, int]] = []
    for low, high in itertools.pairwise(cuts):
        piece = shown[low:high].strip()
        is_alone = len(re.findall(r"\w+", piece)) < 2 or _WHEN.fullmatch(piece)
        opens = spans and not _WORD.search(shown, *spans[-1])
        if spans and (is_alone or opens):
            spans[-1] = (spans[-1][0], high)
        elif low < high:
            spans.append((low, high))
    return spans
