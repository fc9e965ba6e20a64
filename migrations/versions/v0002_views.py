"""Views over the events that read well without JSON functions.

Literal statements, in a file for each backend: what this step made stays what it made, whatever the program's schema becomes.
"""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in statements(op.get_bind().dialect.name):
        op.execute(statement)


def statements(dialect: str) -> list[str]:
    """The statements for a backend (`sqlite` or `postgresql`), in order; a blank line stands between them."""
    text = Path(__file__).with_name(f"v0002_{dialect}.sql").read_text(encoding="utf-8")
    _comment, *found = text.rstrip().split("\n\n")
    return [statement.removesuffix(";") for statement in found]
