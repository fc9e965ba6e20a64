"""Every recorded field is judged, or stands in this table with the reason why a change of it may go unnoticed.

Each field of each event of runs that carry the plan out is changed in every way that `judge_fields` knows, and the run
judged. A change is silent when nothing is found and the assurance stays what it was. What is silent must be in the
table, in just the ways that it says, and what the table says must be silent: a new field cannot join it unseen.
"""

from __future__ import annotations

from collections import defaultdict
from fnmatch import fnmatchcase

import pytest

from ledger.bodies import BODIES, Body, MemorySampled
from tests.ledger.judge_fields import Change, Court, changes, forms

ANY = "*"
COUNTS = "a count has no scale: its unit names what was counted"
NOISE = "within the plan's noise"
NO_SCALE = ("unit", "no unit")
NEAR = ("near",)
MORE = ("near", "far")
SAID_ONLY = ("declared",)
LOADING = (
    "before the first release copies come and go; what may be there at once is judged where the plan expects a peak"
)
PEOPLE = "told for people"
MACHINE = "machine-wide figures swing with other processes and are never judged"
FOUND_AGAIN = "what is not bound is found again by kind and device, by the same rule"
CLAIM = "an adapter's word stays a word, whoever repeats it"
STAGING_WORD = "staging counts for nothing in the assurance: what it was is judged at its release"
SELF = "what the fixture says of itself; the plan binds its digest. Tokens that it does say are judged"
WHO = "who ran it; no plan asks"
SETTLED = "a local directory has none; the planned digests settle which model it is"

SILENT: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {
    "run.opened": {
        "purpose": (("witness",), "it excuses only what is missing"),
        "plan/blob_digest": (
            ("other",),
            "of the file's bytes, which verification hashes; what is judged is the content",
        ),
        "plan/plan_schema": (("other",), "it is in the plan, and so in its digest"),
        "frozen/hash": (("other",), "verification proves it; digest and position are judged"),
        "frozen/ledger_size": (MORE, "a larger ledger makes the freezing no later"),
        "adapter/version": ((ANY,), "what it claims is held against probes, whatever its version"),
        "adapter/distribution": ((ANY,), "what it claims is held against probes, whatever package it came in"),
        "software/*": ((ANY,), WHO),
        "argv": ((ANY,), "hidden by --private"),
        "user": ((ANY,), "hidden by --private"),
        "hostname": ((ANY,), "hidden by --private"),
        "pid": ((ANY,), "hidden by --private"),
        "labels/*": ((ANY,), "the user's own words"),
        "model/directory": ((ANY,), "hidden by --private"),
        "model/repository": (("unknown", "declared", "claimed"), SETTLED),
        "model/revision": (("unknown", "declared", "claimed"), SETTLED),
        "checkpoint_files": (("first one twice",), "the same file, as it is"),
        "checkpoint_files/*/digest": (("known",), "the plan asks for none of this file"),
    },
    "environment.observed": {
        "compute_units": (("first one twice",), "the same unit, as it is"),
        "compute_units/*/device_uuid": (("known",), "the plan names none"),
        "compute_units/*/name": ((ANY,), PEOPLE),
        "compute_units/*/memory_resources": (
            (ANY,),
            "the host's memory belongs to no unit; a device's must be its own",
        ),
        "compute_units/*/memory_resources/*": (("other",), "as above"),
        "memory_resources": (("first one twice",), "the same resource, as it is"),
        "memory_resources/*/available_bytes": ((ANY,), "changes from second to second"),
        "memory_resources/*/capacity_bytes": (MORE, "more than the plan needs"),
        "facts/*": ((ANY,), PEOPLE),
    },
    "plan.accepted": {
        "bindings/*": (("removed", "renamed"), FOUND_AGAIN),
        "required_bytes/*": ((ANY,), "the engine's sum over the plan; the judge makes its own"),
    },
    "reference.bound": {"provenance/*": (("removed", "renamed", "other"), SELF)},
    "materialization.realized": {
        "bytes": (SAID_ONLY, CLAIM),
        "tensors": ((*SAID_ONLY, *NO_SCALE), f"{CLAIM}; {COUNTS}"),
        "streamed_bytes": (SAID_ONLY, CLAIM),
        "unplanned_bytes": (SAID_ONLY, CLAIM),
        "elapsed_ns": (("near", "far", "zero", "unknown", "declared", "claimed"), "time is not judged"),
    },
    "materialization.observed": {
        "memory_resource_id": (SAID_ONLY, STAGING_WORD),
        "representation": (SAID_ONLY, STAGING_WORD),
        "bytes": (SAID_ONLY, STAGING_WORD),
        "live": (SAID_ONLY, STAGING_WORD),
        "storages": ((*MORE, *SAID_ONLY, *NO_SCALE), "some, however many: nobody plans or claims them"),
        "tensors": ((*SAID_ONLY, *NO_SCALE), f"{STAGING_WORD}; {COUNTS}"),
        "ranges": (("first one twice",), "the same range, counted once"),
        "ranges/*/length": (MORE, "a range may be longer than what lies in it; pages are the kernel's to count"),
        "ranges/*/start": (MORE, "where it lies is nobody's plan, as long as nothing else lies there"),
    },
    "materialization.released": {
        "owners_total": ((*MORE, *NO_SCALE), "some, however many"),
        "owners_alive": (NO_SCALE, COUNTS),
    },
    "execution.activated": {"state": (("first one twice",), "the same state, bound once")},
    "reclamation.observed": {
        "owners_total": ((*MORE, *NO_SCALE), "some, however many"),
        "owners_alive": (NO_SCALE, COUNTS),
        "region_mapped": (NEAR, "mapped, but the tree gave the pages back"),
        "tree_before": (NEAR, NOISE),
        "tree_after": (NEAR, NOISE),
        "ratio": (("near", "far", "negative", "zero"), "the region is gone, which settles private memory"),
        "system/*": ((ANY,), MACHINE),
    },
    "decode.ran": {
        "mode": (("cuda-graph",), "no plan asks for a mode"),
        "input/nan_count": (NO_SCALE, COUNTS),
        "input/inf_count": (NO_SCALE, COUNTS),
        "output/nan_count": (NO_SCALE, COUNTS),
        "output/inf_count": (NO_SCALE, COUNTS),
        "input/within_tolerance": ((ANY,), "the plan asks for exactness"),
        "output/within_tolerance": ((ANY,), "the plan asks for exactness"),
        "tokens": (NO_SCALE, COUNTS),
        "output_digest": (("other",), "of the only prefill there is nothing to compare with; its deviation is judged"),
        "elapsed_ns": (MORE, "how long is not judged"),
        "plan_lookups": (NO_SCALE, COUNTS),
    },
    "source.watched": {
        "tree_accesses": (NO_SCALE, COUNTS),
        "other_accesses": (NO_SCALE, COUNTS),
        "mapped_files": (NO_SCALE, COUNTS),
        "open_descriptors": (NO_SCALE, COUNTS),
        "read_bytes": (NEAR, NOISE),
        "means": (("shortened", "first one twice"), "some means saw; whether they held is `armed` and `overflowed`"),
        "means/*": (("other",), "as above"),
    },
    "memory.sampled": {
        "host/*": ((ANY,), MACHINE),
        "cgroup/*": ((ANY,), "only a cgroup that holds the tree alone says something"),
        "process/vm_pin": ((ANY,), PEOPLE),
        "process/minor_faults": ((ANY,), PEOPLE),
        "process/major_faults": ((ANY,), PEOPLE),
        "process/swap_in": ((ANY,), PEOPLE),
        "process/swap_out": ((ANY,), PEOPLE),
        "process/vm_hwm": (MORE, "peaks are judged where the plan expects one"),
        "process/vm_rss": (NEAR, NOISE),
        "process/rss_file": (NEAR, NOISE),
        "process/new_file_mappings": (NEAR, NOISE),
        "process/new_tmpfs_files": (NEAR, NOISE),
        "process/checkpoint_mappings": (MORE, LOADING),
        "census/evidence_host_by_role/*": (("removed", "renamed", "near", "far", "zero", "declared"), NOISE),
        "census/unowned_host_bytes": (MORE, LOADING),
        "census/unowned_host_storages": ((*MORE, *NO_SCALE), f"{LOADING}; {COUNTS}"),
        "census/unowned_device_bytes": (
            ("near", "far", "negative", "a word", "unknown", "claimed", *NO_SCALE),
            f"the plan uses no device; {LOADING}",
        ),
        "cuda/*.allocated": (("near", "far", "zero"), f"{NOISE}; {LOADING}"),
        "cuda/*.reserved": (("near", "far", "removed", "renamed"), f"{NOISE}; {LOADING}"),
        "cuda/*.peak": (("near", "far", "zero", "removed", "renamed"), "peaks are judged where the plan expects one"),
        "cuda/*.process": ((ANY,), "a container may not see its processes on the device; used where it can"),
        "cuda/host_pool": ((ANY,), "its growth from the first release on is judged; pages are the process tree's"),
    },
}
"""Event type -> field -> (ways of changing it that go unnoticed, why). `*`: every way."""

WORDS = ("method", "detail")
"""How somebody looked, and what more there is to say: words for people."""

NOT_IN_A_CLEAN_RUN = {
    "plan.frozen": "a stream of its own; the run cites it in run.opened",
    "plan.rejected": "`plan.rejected` is found",
    "materialization.skipped": "`materialization.missing` is found of a required one",
    "materialization.failed": "`materialization.missing` is found",
    "release.refused": "`staging.not-released` is found",
    "source.accessed": "`decode.source-accessed` or `decode.access-unknown` is found",
    "verdict.recorded": "somebody's verdict; the judge gives its own",
    "run.superseded": "a note",
}

COURTS = {name: Court(form) for name, form in forms().items()}
LABELS = ("baseline", "materialized:mat.weights.stage", "after-release:mat.weights.stage", "closing")
NAMED = ("mat.weights.stage", "mat.weights.resident", "mat.kv-cache")
ELSEWHERE = {"gpu": ("cuda", "census", "ranges"), "streamed": ("streamed_bytes", "source_digest", "resident_digest")}
"""What other forms of the run have that the first has not, or otherwise."""


def told(change: Change) -> tuple[tuple[str, ...], str] | None:
    """What the table says of the changed field."""
    for pattern, row in SILENT.get(change.kind, {}).items():
        if fnmatchcase(change.field, pattern):
            return row
    return None


def may_be_silent(change: Change) -> bool:
    row = told(change)
    return row is not None and (ANY in row[0] or change.how in row[0])


def representative(body: Body) -> bool:
    """Of events that are judged alike one of each kind is enough."""
    if isinstance(body, MemorySampled):
        return body.label in LABELS
    if getattr(body, "repetition", None):
        return False
    return getattr(body, "materialization_id", NAMED[0]) in NAMED


def tried(form: str) -> list[Change]:
    bodies = COURTS[form].bodies
    return [
        change
        for change in changes(bodies)
        if representative(bodies[change.index])
        and change.path[-1] not in WORDS
        and (form not in ELSEWHERE or change.path[0] in ELSEWHERE[form])
    ]


@pytest.fixture(scope="module")
def unnoticed() -> list[Change]:
    """Every change, in whichever form of the run, that nothing is found of."""
    return [change for form, court in COURTS.items() for change in tried(form) if court.silent(court.after(change))]


def test_the_unchanged_runs_pass() -> None:
    assert [court.clean[0] for court in COURTS.values()] == ["PASS"] * len(COURTS)


def test_what_goes_unnoticed_is_in_the_table_with_its_reason(unnoticed: list[Change]) -> None:
    holes = sorted({(change.kind, change.field, change.how) for change in unnoticed if not may_be_silent(change)})
    assert holes == []


def test_what_the_table_says_goes_unnoticed_does(unnoticed: list[Change]) -> None:
    """A row that nothing needs any more is a lie about the judge."""
    silent: dict[tuple[str, str], set[str]] = defaultdict(set)
    for change in unnoticed:
        row = next((p for p in SILENT.get(change.kind, {}) if fnmatchcase(change.field, p)), None)
        if row is not None:
            silent[change.kind, row] |= {change.how, ANY}
    stale = [
        (kind, field, how)
        for kind, rows in SILENT.items()
        for field, (hows, _) in rows.items()
        for how in hows
        if how not in silent[kind, field]
    ]
    assert stale == []


def test_every_event_type_is_changed_or_is_itself_what_is_found() -> None:
    here = {body.TYPE for court in COURTS.values() for body in court.bodies}
    assert {body.TYPE for body in BODIES} - here == set(NOT_IN_A_CLEAN_RUN)


def test_every_row_gives_its_reason() -> None:
    assert all(len(why) > 3 for rows in SILENT.values() for _, why in rows.values())
