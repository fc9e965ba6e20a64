"""Every piece of bad evidence is refused as what it is, quickly; the good one passes."""

from __future__ import annotations

import time

import pytest

from ledger.errors import EvidenceBroken
from ledger.evidence import open_evidence, verify
from tests.builders.judged import KEY
from tests.zoo import evidence

PUBLIC = KEY.public_key()
OF_A_VERIFIER = ("signature", "judge")
"""What `open_evidence` leaves to `verify`."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> evidence.Files:
    return evidence.files(tmp_path_factory.mktemp("evidence"))


def test_the_good_file_is_valid(files: evidence.Files) -> None:
    document = verify(files.good, public_key=PUBLIC, challenge="nonce")
    assert (document.status, document.problems, document.unmet, document.verdict) == ("valid", [], [], "PASS")
    predicate = open_evidence(files.good).statement.predicate
    assert (len(predicate.prior_runs), len(predicate.witnesses), len(predicate.blobs)) == (1, 1, 1)
    assert evidence.first_envelope(files.good)["body"]["challenge"] == "nonce"


@pytest.mark.parametrize("name", sorted(evidence.FORM))
def test_any_other_form_is_refused(name: str, files: evidence.Files) -> None:
    data = evidence.FORM[name](files.good)
    assert data != files.good
    started = time.process_time()
    for key in (None, PUBLIC):
        document = verify(data, public_key=key)
        assert document.status == "broken"
        assert {problem.code for problem in document.problems} <= {"format", "signature"}
        assert document.verdict is None
    with pytest.raises(EvidenceBroken):
        open_evidence(data)
    assert time.process_time() - started < 6, "three looks, two seconds each"


@pytest.mark.parametrize("name", sorted(evidence.HELD))
def test_what_does_not_hold_together_is_named(name: str, files: evidence.Files) -> None:
    forge, code = evidence.HELD[name]
    data = forge(files)
    document = verify(data, public_key=PUBLIC)
    assert document.status == "broken"
    assert document.problems[0].code == code, document.problems
    if code not in OF_A_VERIFIER:
        with pytest.raises(EvidenceBroken):
            open_evidence(data)


def test_every_kind_of_problem_of_evidence_is_in_the_zoo() -> None:
    codes = {code for _, code in evidence.HELD.values()}
    assert codes == {
        "content", "linkage", "gap", "unknown-type", "blob-missing", "blob-altered", "tail", "signature", "format", "proof",
        "judge",
    }  # fmt: skip
