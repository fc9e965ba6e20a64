"""Makes the golden evidence of format 1, as a program with an older judge wrote it: file, public key and pin.

`python -m tests.goldens.evidence` writes them anew. Do that only for a new format, under a new name: files that have left
the machine cannot be made anew, so what is committed must go on verifying.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ledger import keys, pins
from ledger.bodies import VerdictRecorded
from ledger.export import export_run
from ledger.recording import ListLedger
from ledger.store import Store
from tests.builders.evidence import edited
from tests.builders.judged import KEY, add_run, draft, run_bodies, run_id, stored

FOLDER = Path(__file__).parent
NAME = "evidence-1"
OLDER_JUDGE = "0"


def older(predicate: dict[str, Any]) -> None:
    """What the older judge concluded: findings that no judge of today knows."""
    predicate["judgeVersion"] = OLDER_JUDGE
    predicate["scope"]["proves"] = ["The older program said less."]
    predicate["findings"] = [
        {"code": "run.noted", "severity": "note", "subject": "run", "expected": None, "observed": None, "events": [0]}
    ]


def main() -> None:
    contents = ListLedger()
    add_run(contents, 1, bodies=run_bodies(challenge="golden"), verdict=False)
    count = len(contents.events(run_id(1)))
    verdict = VerdictRecorded(judge_version=OLDER_JUDGE, verdict="PASS", assurance="observed", codes=["run.noted"])
    contents.append(run_id(1), count, [draft(verdict, run_id(1), count)])
    with tempfile.TemporaryDirectory() as folder, Store.open(stored(Path(folder) / "t.db", contents)) as store:
        (FOLDER / f"{NAME}.json").write_bytes(edited(export_run(store, run_id(1), KEY), older, KEY))
        (FOLDER / f"{NAME}.pin").write_bytes(pins.note(store)[0])
    (FOLDER / f"{NAME}.pub").write_bytes(keys.public_pem(KEY.public_key()))


if __name__ == "__main__":
    main()
