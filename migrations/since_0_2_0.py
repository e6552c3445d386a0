"""From the schema of release 0.2.0 to the present one, with everything that such a record holds."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from store.schema import metadata, trajectories_view

#: The revision of release 0.2.0.
REVISION = "0007"

_RENAMED = (
    "DROP VIEW trajectories",
    "ALTER TABLE lives RENAME TO turn_states",
    "ALTER TABLE turns RENAME COLUMN scope TO key_name",
    "ALTER TABLE turn_states RENAME COLUMN since TO stage_since",
    'ALTER TABLE alias_moves RENAME COLUMN "by" TO actor',
    "ALTER TABLE verdicts DROP COLUMN wishes",  # labels of known styles
)
_FILLED = (
    "UPDATE turns SET main_drop_reason = 'no_tokens' WHERE completion_token_ids = '[]'",
    "UPDATE verdicts SET source = 'none' WHERE source = 'nobody'",
)


def upgrade(connection: sa.Connection) -> None:
    """Bring the record to the schema that `store.schema` declares."""
    _execute(connection, _RENAMED)
    metadata.create_all(connection)  # the tables that are new
    _add_columns(connection)
    _renew_indexes(connection)
    _execute(connection, _FILLED)
    _make_wishes(connection)
    connection.execute(sa.text(trajectories_view(connection.dialect.name)))


def _execute(connection: sa.Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        connection.execute(sa.text(statement))


def _add_columns(connection: sa.Connection) -> None:
    found = sa.inspect(connection)
    for table in metadata.tables.values():
        present = {column["name"] for column in found.get_columns(table.name)}
        for column in table.columns:
            if column.name not in present:
                words = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
                connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {words}"))


def _renew_indexes(connection: sa.Connection) -> None:
    found = sa.inspect(connection)
    for table in metadata.tables.values():
        for index in found.get_indexes(table.name):
            if not index.get("duplicates_constraint"):
                connection.execute(sa.text(f"DROP INDEX {index['name']}"))
        for declared in table.indexes:
            declared.create(connection)


def _make_wishes(connection: sa.Connection) -> None:
    """Turn the newest words of the owner's edits into wishes; an edit without words withdrew its wish."""
    edits = connection.execute(
        sa.text("SELECT policy, turn_id, text, created_at FROM wish_edits ORDER BY edit_id")
    )
    kept = [edit for edit in {edit.turn_id: edit for edit in edits}.values() if edit.text]
    for edit in kept:
        wish = {"policy": edit.policy, "state": "prompt", "text": edit.text, "edited": True, "measures": "{}",
                "created_at": edit.created_at, "changed_at": edit.created_at}  # fmt: skip
        made = connection.execute(sa.insert(metadata.tables["wishes"]).values(wish))
        assert made.inserted_primary_key is not None  # the table has one
        stated = {"wish_id": made.inserted_primary_key[0], "turn_id": edit.turn_id, "text": edit.text,
                  "created_at": edit.created_at}  # fmt: skip
        connection.execute(sa.insert(metadata.tables["wish_statements"]).values(stated))
    connection.execute(sa.text("DROP TABLE wish_edits"))
