"""Wishes: stated and withdrawn by verdicts, changed by the trainer and the owner, read by the gateway."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Row

from store import schema
from store.database import upsert
from store.errors import RecordError
from store.hashing import exact_json
from store.queries.common import moment, read_object, value_of
from store.values import Json, Verdict, Wish, WishesSeen, WishScope, WishState, WishStatement
from store.wish_states import in_prompt, learnt_rows

_WORD = re.compile(r"[^\W_]+")
#: Writing without spaces between words: each pair of characters counts as a word.
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f]{2,}")
#: Shortest content word, and the characters that two forms of one word share: bullet and bullets, short and shorter.
_LEAST_WORD, _STEM = 3, 4
#: Words that say nothing about what a withdrawal means, in the languages that most people here write.
_FUNCTION_WORDS = frozenset(
    _WORD.findall(
        """
    again all always and any anymore answer answers are ask asked back been before but can change changed don dont earlier ever every fine
    for forget from have how instead its just keep like longer make mind more need never not now off okay only please prefer preferred
    reply replies request response responses rule said scratch should sorry still stop that the them then there these thing things this
    those use used using want wanted was way were what when will with would write you your aber alle antwort antworten auch bitte das dem
    den der die doch ein eine einen frage genug ich ist jetzt kann kannst kein keine lieber mehr mich mir nicht nun schon sein sich sie
    und vergiss von war wieder wie wunsch aux avec cela ces cet cette comme dans des dois elle encore est être les mais merci mes moi non
    nous oublie oui pas peux plus pour que qui réponse réponses sans ses son sur tes toi ton tous tout tu une veux vos votre vous ahora
    como con cuando del deja ella esa ese eso esta este esto favor gracias hacer las los más mejor mis muy nada otra otro para pero por
    porque puede puedes quiero respuesta respuestas siempre sin sino sus también todo tus una uno volver 不再 不用 不要 以后 可以 回答 回复 请用 のは ない して
    ます もう
        """
    )
)


def wishes(connection: sa.Connection, policy: str | None = None) -> tuple[Wish, ...]:
    """Return the wishes of a policy, or of all, the oldest first, whatever their state."""
    w, s = schema.wishes.c, schema.wish_statements.c
    query = sa.select(schema.wishes).order_by(w.wish_id)
    stated = sa.select(schema.wish_statements).order_by(s.created_at, s.turn_id)
    if policy is not None:
        query = query.where(w.policy == policy)
        stated = stated.join(schema.wishes, w.wish_id == s.wish_id).where(w.policy == policy)
    by_wish: dict[int, list[WishStatement]] = {}
    for row in connection.execute(stated):
        statement = WishStatement(turn_id=row.turn_id, text=row.text, created_at=row.created_at)
        by_wish.setdefault(row.wish_id, []).append(statement)
    return tuple(_wish(row, by_wish.get(row.wish_id, ())) for row in connection.execute(query))


def prompt_texts_since(
    connection: sa.Connection, known: WishesSeen | None
) -> tuple[WishesSeen, dict[str, tuple[str, ...]] | None]:
    """Return the wordings in the prompt of each policy (`store.wish_states.in_prompt`), where any changed since ``known``.

    Returns:
        (what to ask with next time, the wordings; None: nothing changed).
    """
    w = schema.wishes.c
    counts = connection.execute(
        sa.select(sa.func.count(), sa.func.max(w.wish_id), sa.func.max(w.changed_at))
    ).one()
    seen = WishesSeen(count=counts[0], newest=counts[1] or 0, changed_at=counts[2] or 0.0)
    if seen == known:
        return seen, None
    texts: dict[str, tuple[str, ...]] = {}
    for wish in in_prompt(wishes(connection)):
        texts[wish.policy] = (*texts.get(wish.policy, ()), wish.text)
    return seen, texts


def change_wish(
    connection: sa.Connection,
    wish_id: int,
    *,
    state: WishState | None = None,
    text: str | None = None,
    measures: Json | None = None,
    now: float | None = None,
) -> Wish:
    """Change what is given of a wish, and return it. ``text`` is the owner's; the measures of the earlier wording go with it.

    Raises:
        RecordError: there is no such wish, or the text is empty.
    """
    now = moment(now)
    before = _get(connection, wish_id)
    values: dict[str, Any] = {}
    if text is not None:
        if not text.strip():
            raise RecordError(f"wish {wish_id} needs words")
        values |= {"text": text, "edited": True, "measures": "{}"}
    if state is not None:
        values["state"] = state.value
    if any(before._mapping[name] != value for name, value in values.items()):
        values["changed_at"] = _change_time(connection, now)
    if measures is not None:
        values["measures"] = exact_json(measures)
    if values:
        _update(connection, wish_id, **values)
    return next(wish for wish in wishes(connection, before.policy) if wish.wish_id == wish_id)


def merge_wishes(connection: sa.Connection, into: int, others: Sequence[int], *, text: str = "") -> None:
    """Make other wishes a part of one of the same policy. Those that are not there any more were merged before.

    The one gets their statements, is in the prompt where one of them is, and is as new as the newest of them.

    Args:
        text: the wording to use; "" leaves it as it is. The words of an owner stay where they are the one's.

    Raises:
        RecordError: the one is not there, or another is of another policy.
    """
    one, w = _get(connection, into), schema.wishes.c
    found = connection.execute(sa.select(schema.wishes).where(w.wish_id.in_(others), w.wish_id != into)).all()
    for other in found:
        if other.policy != one.policy:
            raise RecordError(f"wish {other.wish_id} is of another policy than wish {into}")
    if not found:
        return
    gone, newest = [other.wish_id for other in found], max([one, *found], key=lambda row: row.changed_at)
    # `prompt_texts_since` notices that there are fewer wishes.
    _update(
        connection,
        into,
        text=one.text if one.edited or not text else text,
        edited=one.edited or any(other.edited and other.text == text for other in found),
        state=next((row.state for row in found if row.state == WishState.PROMPT.value), one.state),
        changed_at=newest.changed_at,
    )
    s = schema.wish_statements.c
    connection.execute(sa.update(schema.wish_statements).where(s.wish_id.in_(gone)).values(wish_id=into))
    connection.execute(sa.delete(schema.wishes).where(schema.wishes.c.wish_id.in_(gone)))


def take_wish(connection: sa.Connection, verdict: Verdict) -> None:
    """Let a new verdict's wish act: stated, it goes into the prompt; withdrawn, its wish comes out. To be called before the verdict is stored.

    A verdict that repeats what an earlier one of its turn said changes nothing: the wish may have been withdrawn since.
    """
    found, v, t = verdict.wish, schema.verdicts.c, schema.turns.c
    if (
        found is None
        or found.scope not in (WishScope.LASTING, WishScope.WITHDRAWAL)
        or not found.text.strip()
    ):
        return
    same = sa.select(v.verdict_id).where(
        v.turn_id == verdict.turn_id, v.wish == found.text, v.wish_scope == found.scope.value
    )
    policy = connection.execute(sa.select(t.policy).where(t.turn_id == verdict.turn_id)).scalar_one_or_none()
    if policy is None or connection.execute(same.limit(1)).first() is not None:
        return
    known = wishes(connection, policy)
    at = _change_time(connection, verdict.created_at)
    if found.scope is WishScope.WITHDRAWAL:
        withdrawn = _find_withdrawn(known, found.text)
        if withdrawn is not None:
            _update(connection, withdrawn.wish_id, state=WishState.WITHDRAWN.value, changed_at=at)
            return
    folded = _fold(found.text)
    same_words = [
        wish
        for wish in known
        if folded in {_fold(text) for text in (wish.text, *(s.text for s in wish.statements))}
    ]
    # One that acts, else the newest.
    same_words.sort(key=lambda wish: (wish.state is WishState.PROMPT, wish.changed_at, wish.wish_id))
    if same_words:
        wish_id = same_words[-1].wish_id
        _update(connection, wish_id, state=WishState.PROMPT.value, changed_at=at)
    else:
        values = {
            "policy": policy, "state": WishState.PROMPT.value, "text": found.text, "edited": False, "measures": "{}",
            "created_at": at, "changed_at": at,
        }  # fmt: skip
        made = connection.execute(sa.insert(schema.wishes).values(**values))
        (wish_id,) = cast("Row[Any]", made.inserted_primary_key)
    statement = {"turn_id": verdict.turn_id, "wish_id": wish_id, "text": found.text, "created_at": at}
    before = {wish.wish_id for wish in known for one in wish.statements if one.turn_id == verdict.turn_id}
    upsert(connection, schema.wish_statements, statement, ["turn_id"])
    settle_wishes(connection, before - {wish_id}, at)


def sync_retired(connection: sa.Connection, policy: str, version: int, now: float) -> None:
    """Let the wishes that the live version follows alone leave the prompt, and those that it does not come back.

    A wish that was stated or edited since the version was made stays in the prompt.
    """
    a = schema.adapters.c
    row = connection.execute(
        sa.select(a.metrics, a.created_at).where(a.policy == policy, a.version == version)
    ).one_or_none()
    rows = learnt_rows(read_object(row.metrics)) if row is not None else ()
    followed = {one["wish_id"] for one in rows if one.get("retired")}
    for wish in wishes(connection, policy):
        is_followed = row is not None and wish.wish_id in followed
        if wish.state is WishState.RETIRED and not is_followed:
            _update(
                connection,
                wish.wish_id,
                state=WishState.PROMPT.value,
                changed_at=_change_time(connection, now),
            )
        elif (
            wish.state is WishState.PROMPT
            and is_followed
            and row is not None
            and _said_at(wish) < row.created_at
        ):
            _update(
                connection,
                wish.wish_id,
                state=WishState.RETIRED.value,
                changed_at=_change_time(connection, now),
            )


def _said_at(wish: Wish) -> float:
    """Return when a wish was last stated, or edited by the owner."""
    stated = max((one.created_at for one in wish.statements), default=wish.created_at)
    return max(stated, wish.changed_at) if wish.edited else stated


def settle_wishes(connection: sa.Connection, wish_ids: Collection[int], now: float) -> None:
    """After statements of these wishes are gone: delete a wish without any, and give one whose words are gone those of another statement."""
    s = schema.wish_statements.c
    for wish_id in wish_ids:
        texts = list(
            connection.execute(
                sa.select(s.text).where(s.wish_id == wish_id).order_by(s.created_at, s.turn_id)
            ).scalars()
        )
        if not texts:
            connection.execute(sa.delete(schema.wishes).where(schema.wishes.c.wish_id == wish_id))
            continue
        wish = _get(connection, wish_id)
        if not wish.edited and wish.text not in texts:
            at = _change_time(connection, now)
            _update(connection, wish_id, text=texts[-1], measures="{}", changed_at=at)


def wishes_stated_in(connection: sa.Connection, turn_ids: Collection[str]) -> set[int]:
    """Return the wishes that these turns state."""
    s = schema.wish_statements.c
    rows = connection.execute(sa.select(s.turn_id, s.wish_id))
    return {row.wish_id for row in rows if row.turn_id in turn_ids}


def answered_with(connection: sa.Connection, stating: Collection[str]) -> set[str]:
    """Return the turns whose prompts held the words of wishes that only these turns state."""
    gone, kept = set[str](), set[str]()
    for wish in wishes(connection):
        states = [one.turn_id in stating for one in wish.statements]
        for statement, is_gone in zip(wish.statements, states, strict=True):
            (gone if is_gone else kept).add(_as_line(statement.text))
        if wish.edited:
            (gone if all(states) else kept).add(_as_line(wish.text))
    words = gone - kept
    t = schema.turns.c
    rows = connection.execute(sa.select(t.turn_id, t.wish_text).where(t.wish_text != "")) if words else ()
    return {row.turn_id for row in rows if not words.isdisjoint(row.wish_text.split("\n"))}


def _as_line(text: str) -> str:
    """Return a wording as a prompt has it."""
    return " ".join(text.split())


def _find_withdrawn(known: Sequence[Wish], text: str) -> Wish | None:
    """Return the wish that acts and shares most content words with a withdrawal, the newest of several; None: none shares any."""
    said = _content_words(text)
    best: tuple[int, float, int] | None = None
    found = None
    for wish in known:
        if wish.state is WishState.WITHDRAWN:
            continue
        stated = _content_words(" ".join([wish.text, *(one.text for one in wish.statements)]))
        shared = sum(any(_is_same_word(one, other) for other in stated) for one in said)
        rank = (shared, wish.changed_at, wish.wish_id)
        if shared and (best is None or rank > best):
            best, found = rank, wish
    return found


def _content_words(text: str) -> set[str]:
    words = {word.casefold() for word in _WORD.findall(_UNSPACED.sub(" ", text))}
    words |= {run[at : at + 2] for run in _UNSPACED.findall(text) for at in range(len(run) - 1)}
    return {word for word in words - _FUNCTION_WORDS if len(word) >= _LEAST_WORD or not word.isascii()}


def _is_same_word(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return one == other or (len(short) >= _STEM and long.startswith(short[: max(_STEM, len(short) - 2)]))


def _fold(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold())) or text.strip()


def _change_time(connection: sa.Connection, now: float) -> float:
    """Return a time behind every earlier change, whatever the clock says: `prompt_texts_since` goes by it."""
    newest = connection.execute(sa.select(sa.func.max(schema.wishes.c.changed_at))).scalar_one()
    return now if newest is None else max(now, newest + 1e-6)


def _get(connection: sa.Connection, wish_id: int) -> Row[Any]:
    row = connection.execute(sa.select(schema.wishes).where(schema.wishes.c.wish_id == wish_id)).one_or_none()
    if row is None:
        raise RecordError(f"there is no wish {wish_id}")
    return row


def _update(connection: sa.Connection, wish_id: int, **values: Any) -> None:
    connection.execute(sa.update(schema.wishes).where(schema.wishes.c.wish_id == wish_id).values(**values))


def _wish(row: Row[Any], statements: Sequence[WishStatement]) -> Wish:
    return value_of(
        Wish,
        row,
        state=WishState(row.state),
        measures=read_object(row.measures),
        statements=tuple(statements),
    )
