"""Evidence of an older format, sealed by an older judge, still verifies."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger import keys
from ledger.evidence import Requirements, verify
from tests.goldens import evidence

FILES = sorted(evidence.FOLDER.glob("evidence-*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden_evidence_still_verifies(path: Path) -> None:
    document = verify(
        path.read_bytes(),
        public_key=keys.load_public(path.with_suffix(".pub")),
        pin=path.with_suffix(".pin").read_bytes(),
        challenge="golden",
        require=Requirements.parse("signature,pin,frozen,challenge,first-run,assurance=observed"),
    )
    assert (document.status, document.problems, document.unmet) == ("valid", [], [])
    assert (document.verdict, document.recorded_verdict) == ("PASS", "PASS")
    assert document.judge_version != evidence.OLDER_JUDGE
    assert document.checks.judge == "not-checked", "what an older judge concluded cannot be checked by this one"


def test_the_first_format_is_among_them() -> None:
    assert f"{evidence.NAME}.json" in {path.name for path in FILES}
