"""Schema steps of the ledger: Alembic environment and versions, literal statements that import nothing of ours."""
