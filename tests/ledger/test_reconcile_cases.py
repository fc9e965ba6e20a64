"""What the judge says of the clean run with one thing changed: a table that needs no knowledge of the code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger.bodies import RunClosed
from ledger.events import Actor
from ledger.measurement import measured, unavailable
from ledger.reconcile import INVARIANTS, Judgement
from tests.builders.runs import CONFIG_DIGEST, with_values
from tests.ledger.judge_cases.authorities import AUTHORITIES
from tests.ledger.judge_cases.case import BUFFERS, MIB, STAGE, WEIGHTS, Bodies, Case, claim, declared, judged, probe
from tests.ledger.judge_cases.clean import CLEAN
from tests.ledger.judge_cases.contents import CONTENTS
from tests.ledger.judge_cases.copies import COPIES
from tests.ledger.judge_cases.decodes import DECODES
from tests.ledger.judge_cases.devices import DEVICES
from tests.ledger.judge_cases.environments import ENVIRONMENTS
from tests.ledger.judge_cases.executions import EXECUTIONS
from tests.ledger.judge_cases.materializations import MATERIALIZATIONS
from tests.ledger.judge_cases.memories import MEMORIES
from tests.ledger.judge_cases.plans import PLANS
from tests.ledger.judge_cases.runs import RUNS
from tests.ledger.judge_cases.samples import SAMPLES, hidden, value
from tests.ledger.judge_cases.stagings import STAGINGS
from tests.ledger.judge_cases.steps import (
    activation,
    at_the_end,
    chain,
    decode,
    digest,
    grown,
    looked_again,
    observed,
    opening,
    realized,
    reclaimed,
    released,
    sampled,
    verified,
    watch,
)
from tests.ledger.judge_cases.witnesses import WITNESSES

CASES = [
    *CLEAN,
    *PLANS,
    *ENVIRONMENTS,
    *MATERIALIZATIONS,
    *CONTENTS,
    *DEVICES,
    *STAGINGS,
    *AUTHORITIES,
    *EXECUTIONS,
    *DECODES,
    *MEMORIES,
    *COPIES,
    *SAMPLES,
    *WITNESSES,
    *RUNS,
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case) -> None:
    judgement = judged(case)
    found = [
        f"{finding.severity} {finding.code} {finding.subject}: {finding.observed}" for finding in judgement.findings
    ]
    assert (judgement.verdict, set(judgement.codes)) == (case.verdict, case.codes), "\n".join(found)
    for finding in judgement.findings:
        if finding.code in case.unknown:
            assert finding.severity == "unknown", finding


def test_there_are_at_least_eighty_cases_and_their_titles_are_distinct() -> None:
    assert len(CASES) >= 80
    assert len({case.title for case in CASES}) == len(CASES)


def test_every_code_has_a_case() -> None:
    codes = {code for invariant in INVARIANTS for code in invariant.codes}
    covered = {code for case in CASES for code in case.codes}
    assert covered == codes


@pytest.mark.parametrize(
    ("told", "assurance"),
    [
        (lambda run: run, "observed"),
        (observed(WEIGHTS, source_digest=probe(digest("aa")), resident_digest=probe(digest("aa"))), "content-verified"),
        (observed(WEIGHTS, source_digest=probe("none"), resident_digest=probe("none")), "observed"),
        (decode({"output.exact": declared(1)}, repetition=2), "declared"),
        (decode({"plan_lookups": declared(0)}, repetition=2), "declared"),
        (released(owners_alive=declared(0)), "declared"),
        (reclaimed("after-decode", region_mapped=declared(0)), "declared"),
        (watch(tree_accesses=declared(0)), "declared"),
        (sampled("closing", checkpoint_mappings=declared(0)), "declared"),
        (hidden(value("process/new_tmpfs_files", declared(0))), "declared"),
        (at_the_end({"census/unowned_host_bytes": declared(0)}), "declared"),
        (activation(compute_unit_id=declared("cpu0")), "declared"),
        (looked_again(WEIGHTS, {}, {}, {"storages": declared(2)}, {}, {}), "declared"),
        (opening(model__config_digest=declared(CONFIG_DIGEST)), "declared"),
        (decode({"elapsed_ns": declared(40_000_000)}, repetition=2), "declared"),
        (decode({"output_digest": declared("sha256:" + "0d" * 32)}, phase="repetition"), "declared"),
    ],
)
def test_somebodys_word_in_place_of_a_measurement_lowers_the_assurance_of_the_whole(
    told: Callable[[Bodies], Bodies], assurance: str
) -> None:
    judgement = judged(Case("told", "PASS", set(), run=told))
    assert (judgement.verdict, judgement.assurance) == ("PASS", assurance)


@pytest.mark.parametrize("other", [BUFFERS, STAGE])
def test_digests_that_others_contradict_verify_no_content(other: str) -> None:
    theirs = digest("aa" if other == BUFFERS else "bb")
    judgement = judged(Case("told", "FAIL", set(), run=chain(verified(WEIGHTS, digest("aa")), verified(other, theirs))))
    assert judgement.assurance == judgement.assurances[WEIGHTS] == judgement.assurances[other] == "observed"


def test_who_records_a_document_cannot_have_probed() -> None:
    judgement = judged(Case("an import", "INDETERMINATE", set(), run=opening(purpose="import")))
    assert judgement.verdict != "PASS"
    assert judgement.assurance == "declared"
    assert {"materialization.unobserved", "environment.not-observed", "memory.mirror-unknown"} <= set(judgement.codes)


def told(case: Case, code: str) -> list[tuple[object, object]]:
    return [(finding.expected, finding.observed) for finding in judged(case).findings if finding.code == code]


def test_a_contradiction_expects_what_was_claimed_and_observes_what_was_seen() -> None:
    lie = Case("told", "FAIL", set(), run=realized(WEIGHTS, bytes=claim(1)))
    assert told(lie, "materialization.claim-contradicted") == [({"bytes": [1]}, {"bytes": [256 * MIB]})]


def test_unexplained_growth_names_every_class_that_grew() -> None:
    grew = chain(grown("new_tmpfs_files", 128 * MIB), grown("rss_anon", 1 * MIB))
    said = [growth for _, growth in told(Case("told", "INDETERMINATE", set(), run=grew), "memory.mirror-unknown")]
    assert len(said) == 2, "after decode and at the end"
    for growth in said:
        assert isinstance(growth, dict)
        assert growth["new_tmpfs_files"] == 128 * MIB
        classes = growth.keys() - {"grown", "explained", "unexplained", "owned"}
        assert sum(growth[name] for name in classes) == growth["grown"]


def test_an_output_of_another_shape_is_one_finding_that_names_the_shapes() -> None:
    why = "shape [1, 7], reference [1, 8]"
    no = measured(0, "flag", "shape and bits compared", detail=why)
    gone = unavailable(None, "compared in float64", why)
    other = {"output.exact": no, "output.max_absolute": gone, "output.max_relative": gone}
    assert [
        observed
        for _, observed in told(Case("told", "FAIL", set(), run=decode(other, repetition=3)), "decode.deviation")
    ] == [{"exact": [0, 1], "max_absolute": "not known", "max_relative": "not known", "because": why}]


@pytest.mark.parametrize("kind", ["importer", "witness", "operator", "judge"])
@pytest.mark.parametrize("first", [0, 20])
def test_in_a_realization_only_the_engine_has_probed(kind: str, first: int) -> None:
    """Also where somebody else takes over in the middle."""
    other = {"actor": Actor(kind=kind, id="x")}  # type: ignore[arg-type]
    judgement = judged(Case("told", "INDETERMINATE", set(), envelope=lambda index: other if index >= first else {}))
    assert (judgement.verdict == "PASS", judgement.assurance) == (False, "declared")
    assert "decode.access-unknown" in judgement.codes


@pytest.mark.parametrize("ending", [[], [RunClosed(outcome="failed")], [RunClosed(outcome="aborted")]])
def test_a_witness_that_did_not_complete_has_not_witnessed(ending: Bodies) -> None:
    def told(last: Bodies) -> Judgement:
        own = {"pid": measured(4243, None, "getpid")}
        return judged(Case("told", "PASS", set(), witness=lambda run: [with_values(run[0], own), *run[1:-1], *last]))

    assert told([RunClosed(outcome="completed")]).witnessed
    assert (told(ending).verdict, told(ending).witnessed) == ("PASS", [])
