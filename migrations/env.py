"""Alembic's environment: runs the steps on the connection and in the transaction that the caller opened.

Standing alone it does nothing: `tally db upgrade` (ledger.migrate) takes the ledger's lock and hands its connection over.
"""

from alembic import context

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("run migrations with `tally db upgrade`, which holds the ledger's lock meanwhile")

# The caller's transaction holds every step and its record: all of them, or none.
context.configure(connection=connection, target_metadata=None, version_table="ledger_version", transactional_ddl=True)
context.run_migrations()
