"""The schema that `migrations.create` makes of `store.schema`: where the chain of later changes begins."""

revision = "0036"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    raise NotImplementedError("`migrations.upgrade` creates the record")


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
