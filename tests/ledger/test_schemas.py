"""The committed JSON Schemas are those that the models give, and what the program writes fits them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledger import documents, schemas
from realizer.cli import documents as command_documents

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"
REMEDY = (
    "run `python -m ledger.schemas docs/schemas realizer.cli.documents`, and think: a form that others rely on changed"
)
MADE = schemas.schemas([command_documents])


@pytest.mark.parametrize("name", sorted(MADE))
def test_the_committed_schema_is_the_generated_one(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == MADE[name], REMEDY


def test_there_is_no_schema_of_something_else() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(MADE), REMEDY


def test_every_document_of_the_contract_has_one() -> None:
    for name in ("tally.run-1", "tally.runs-1", "tally.verdict-1", "tally.verification-1", "tally.comparison-1",
                 "tally.evidence-1", "tally.event-1", "tallystick.plan-1"):  # fmt: skip
        assert f"{name}.json" in MADE
    assert len(schemas.document_models([documents])) == 5


def test_the_statement_is_in_lower_camel_case() -> None:
    predicate = json.loads(MADE["tally.evidence-1.json"])["$defs"]["Predicate"]
    assert {"runId", "planFrozen", "priorRuns", "judgeVersion"} <= set(predicate["properties"])
    assert not [name for name in predicate["properties"] if "_" in name]
    assert predicate["additionalProperties"] is False


def test_writing_takes_stale_schemas_away(tmp_path: Path) -> None:
    (tmp_path / "tally.gone-1.json").write_text("{}")
    written = schemas.write(tmp_path, [command_documents])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in written) == sorted(MADE)
