"""JSON Schemas of every form that leaves the program: plan, events, evidence statement, and the `--json` documents.

`python -m ledger.schemas FOLDER [MODULE ...]` writes one file each; MODULEs hold further document models, such as the
command line's own. What is written is deterministic, and a test compares it with what is committed.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from ledger import documents
from ledger.events import event_schema
from ledger.evidence_form import Statement
from ledger.plan import PlanDocument

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FIXED: dict[str, type[BaseModel]] = {"tallystick.plan-1": PlanDocument, "tally.evidence-1": Statement}


def document_models(modules: Iterable[ModuleType]) -> dict[str, type[BaseModel]]:
    """The models of modules that carry a `format`, by the name of their schema: `tally.run/1` -> `tally.run-1`."""
    found: dict[str, type[BaseModel]] = {}
    for module in modules:
        for value in vars(module).values():
            if not (isinstance(value, type) and issubclass(value, BaseModel)):
                continue
            field = value.model_fields.get("format")
            if field is not None and isinstance(field.default, str):
                found[field.default.replace("/", "-")] = value
    return found


def schemas(modules: Iterable[ModuleType] = ()) -> dict[str, str]:
    """File name -> text of every schema, those of further modules included."""
    models = {**FIXED, **document_models([documents, *modules])}
    made = {name: model.model_json_schema(by_alias=True, mode="validation") for name, model in models.items()}
    made["tally.event-1"] = event_schema()
    return {f"{name}.json": _text(name, schema) for name, schema in sorted(made.items())}


def _text(name: str, schema: dict[str, Any]) -> str:
    return (
        json.dumps({"$schema": DIALECT, "$id": f"urn:tallystick:schema:{name}", **schema}, indent=2, sort_keys=True)
        + "\n"
    )


def write(folder: Path, modules: Iterable[ModuleType] = ()) -> list[Path]:
    """Write the schemas into a folder, which then holds no other schema; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = schemas(modules)
    for stale in folder.glob("*.json"):
        if stale.name not in wanted:
            stale.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in wanted]


if __name__ == "__main__":
    write(Path(sys.argv[1]), [importlib.import_module(name) for name in sys.argv[2:]])
