"""Views whose arrays are read out of the event alone: SQLite parses it once for all columns, not anew for each array.

PostgreSQL keeps its events parsed; nothing changes there.
"""

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        return
    text = Path(__file__).with_name("v0003_sqlite.sql").read_text(encoding="utf-8")
    _comment, *found = text.rstrip().split("\n\n")
    for statement in found:
        op.execute(statement.removesuffix(";"))
