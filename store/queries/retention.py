"""How long conversations are kept: days, for all keys or for one. A running Patina asks for older ones to be forgotten (`forget_jobs`)."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from store import schema
from store.queries import forget_jobs
from store.queries.common import moment, set_control
from store.values import Selection

#: Beginning of the names in `controls`; the key's name follows, nothing for all keys.
_CONTROL = "retain/"
DAY_S = 86_400.0


def retain(
    connection: sa.Connection, days: float | None, key_name: str = "", *, now: float | None = None
) -> None:
    """Keep conversations so many days; None: for ever, or for a key as long as those of the others."""
    name, c = _CONTROL + key_name, schema.controls.c
    if days is None:
        connection.execute(sa.delete(schema.controls).where(c.name == name))
    else:
        set_control(connection, name, repr(days), moment(now))


def retention(connection: sa.Connection) -> dict[str, float]:
    """Return the days by the name of the key; "" for all keys."""
    c = schema.controls.c
    rows = connection.execute(sa.select(c.name, c.value).where(c.name.startswith(_CONTROL, autoescape=True)))
    return {name.removeprefix(_CONTROL): float(value) for name, value in rows}


def ask_for_aged(connection: sa.Connection, *, now: float | None = None) -> list[str]:
    """Ask for the conversations to be forgotten whose newest turn is older than they are kept; returns the jobs.

    Replies of versions that were trained on them stay: they are of newer conversations. A forget that is under way is waited for.
    """
    days, at = retention(connection), moment(now)
    if not days or forget_jobs.open_jobs(connection):
        return []
    return [
        forget_jobs.ask(connection, Selection(key_name=key, before=before), with_replies=False, now=at)
        for key, before in _aged(connection, days, at).items()
    ]


def _aged(connection: sa.Connection, days: Mapping[str, float], now: float) -> dict[str, float]:
    """Return the time before which conversations are too old, by the keys that have such ones."""
    t = schema.turns.c
    newest = sa.select(t.key_name, sa.func.max(t.created_at)).group_by(t.key_name, t.session_id)
    found: dict[str, float] = {}
    for key, at in connection.execute(newest):
        kept = days.get(key, days.get(""))
        if kept is not None and at < now - kept * DAY_S:
            found[key] = now - kept * DAY_S
    return found
