"""Family `memory`."""

from __future__ import annotations

from ledger.bodies import (
    AuthorityEstablished,
    ExecutionActivated,
    MaterializationSkipped,
    MemorySampled,
    ReclamationObserved,
    ReleaseAuthorized,
    RunClosed,
    SourceWatched,
)
from ledger.measurement import measured
from tests.builders.runs import GIB, changed, inserted, moved, size, with_values
from tests.ledger.judge_cases.case import CACHE, MIB, STAGE, UNKNOWN, WEIGHTS, Case, claim, probe
from tests.ledger.judge_cases.steps import (
    PASS,
    added,
    at_the_end,
    capacity,
    chain,
    environment,
    expects,
    grown,
    never_realised,
    optional_cache,
    owner_holds,
    part,
    realized,
    reclaimed,
    removed,
    sampled,
    shared_staging,
    watch,
)

MEMORIES = [
    Case(
        "the adapter reports bytes that nobody planned",
        "FAIL",
        {"memory.unplanned-persistent", "memory.expectation-mismatch"},
        run=realized(WEIGHTS, unplanned_bytes=claim(4096)),
    ),
    Case(
        "live storage under a name that no event has",
        "FAIL",
        {"memory.unplanned-persistent", "memory.expectation-mismatch"},
        run=lambda run: [
            body.model_copy(
                update={"census": body.census.model_copy(update={"by_owner": {**body.census.by_owner, "x": size(64)}})}
            )
            if isinstance(body, MemorySampled) and body.label == "closing" and body.census
            else body
            for body in run
        ],
    ),
    Case(
        "live storage under an owner that calls itself evidence",
        "FAIL",
        {"memory.unplanned-persistent", "memory.expectation-mismatch"},
        run=owner_holds("evidence:copy", 8 * GIB, "after-decode", "closing"),
    ),
    Case(
        "evidence of many roles, each within the noise",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=chain(
            *(at_the_end({f"census/evidence_host_by_role/r{n}": probe(20 * MIB)}) for n in range(4)),
            *(grown("rss_anon", 16 * MIB) for n in range(4)),
        ),
    ),
    Case(
        "ownerless storage on the device",
        "FAIL",
        {"memory.unplanned-persistent", "memory.expectation-mismatch"},
        device="gpu",
        run=at_the_end({"census/unowned_device_bytes": probe(MIB)}),
    ),
    Case(
        "a hidden host copy, alive in the census",
        "FAIL",
        {"memory.host-mirror", "memory.expectation-mismatch", "memory.mirror-unknown"},
        run=chain(grown("rss_anon", 256 * MIB), at_the_end({"census/unowned_host_bytes": probe(256 * MIB)})),
    ),
    Case(
        "a hidden host copy that is dropped before the closing sample",
        "FAIL",
        {"memory.host-mirror"},
        run=lambda run: changed(run, MemorySampled, {"census/unowned_host_bytes": probe(4096)}, label="after-decode"),
    ),
    Case(
        "the checkpoint file is still mapped and resident",
        "FAIL",
        {"memory.host-mirror", "memory.expectation-mismatch", "decode.source-accessed"},
        run=chain(
            at_the_end({"process/checkpoint_mappings": probe(256 * MIB), "mapped_files": ["model.safetensors"]}),
            watch(mapped_files=probe(1)),
        ),
    ),
    Case(
        "a shared map of an unlinked scratch file",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=grown("new_file_mappings", 128 * MIB),
    ),
    Case(
        "a file in a memory file system",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=grown("new_tmpfs_files", 128 * MIB),
    ),
    Case("a child process holds a copy", "INDETERMINATE", {"memory.mirror-unknown"}, run=grown("rss_anon", 256 * MIB)),
    Case("swapped out pages of a copy", "INDETERMINATE", {"memory.mirror-unknown"}, run=grown("vm_swap", 256 * MIB)),
    Case(
        "a small copy, above the noise that this plan allows",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        plan=expects(host_noise_bytes=MIB),
        run=grown("rss_anon", 2 * MIB),
    ),
    Case("no baseline", "INDETERMINATE", {"memory.mirror-unknown"}, run=removed(MemorySampled, label="baseline")),
    Case(
        "the baseline was taken when the model was loaded",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=lambda run: moved(run, MemorySampled, label="baseline", before=AuthorityEstablished),
    ),
    Case("no closing sample", "INDETERMINATE", {"memory.mirror-unknown"}, run=removed(MemorySampled, label="closing")),
    Case(
        "the closing sample was taken before decode",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=lambda run: moved(run, MemorySampled, label="closing", before=ExecutionActivated),
    ),
    Case(
        "no census at the end",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=at_the_end({"census": None}),
    ),
    Case(
        "the census is a literal zero of the adapter",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=at_the_end({"census/unowned_host_bytes": claim(0)}),
    ),
    Case(
        "a negative figure that would cancel out a mirror",
        "FAIL",
        {"memory.host-mirror", "memory.mirror-unknown"},
        run=at_the_end(
            {"census/unowned_host_bytes": probe(-256 * MIB), "process/checkpoint_mappings": probe(256 * MIB)}
        ),
    ),
    Case(
        "the kernel does not say how much is anonymous",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=sampled("closing", rss_anon=UNKNOWN),
    ),
    Case(
        "one sample on the way could not be read",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=sampled(f"materialized:{CACHE}", vm_hwm=UNKNOWN),
    ),
    Case(
        "the device holds more than its owners",
        "INDETERMINATE",
        {"memory.device-residue-unknown"},
        device="gpu",
        run=at_the_end({"cuda/cuda:0.allocated": probe(GIB)}),
    ),
    Case(
        "the driver sees more than the allocator has",
        "INDETERMINATE",
        {"memory.device-residue-unknown"},
        device="gpu",
        run=at_the_end({"cuda/cuda:0.process": probe(2 * GIB)}),
    ),
    Case(
        "the device was not read at the end",
        "INDETERMINATE",
        {"memory.device-residue-unknown"},
        device="gpu",
        run=at_the_end({"cuda": {}}),
    ),
    Case(
        "the device's allocator could not be read",
        "INDETERMINATE",
        {"memory.device-residue-unknown"},
        device="gpu",
        run=at_the_end({"cuda/cuda:0.allocated": UNKNOWN}),
    ),
    Case(
        "more than the capacity on the way, less at the end",
        "FAIL",
        {"memory.peak-exceeded"},
        plan=capacity("node-a.ram", 300 * MIB),
        run=environment({"memory_resources.0.capacity_bytes": probe(16 * GIB)}),
    ),
    Case(
        "more transient at once than the plan expects",
        "FAIL",
        {"memory.peak-exceeded"},
        plan=expects(transient_peak_bytes={"node-a.ram": 128 * MIB}),
    ),
    Case(
        "the process tree peaked above the expected transient peak",
        "FAIL",
        {"memory.peak-exceeded"},
        plan=expects(transient_peak_bytes={"node-a.ram": 256 * MIB}),
        run=sampled(f"materialized:{WEIGHTS}", vm_hwm=probe(2 * GIB)),
    ),
    Case(
        "an expected transient peak that was not measured",
        "INDETERMINATE",
        {"memory.peak-exceeded", "memory.mirror-unknown"},
        plan=expects(transient_peak_bytes={"node-a.ram": 256 * MIB}),
        run=sampled(f"materialized:{WEIGHTS}", vm_hwm=UNKNOWN),
        unknown={"memory.peak-exceeded"},
    ),
    Case(
        "the device peaked above the expected transient peak",
        "FAIL",
        {"memory.peak-exceeded"},
        device="gpu",
        plan=expects(transient_peak_bytes={"gpu0.vram": 16 * MIB}),
        run=lambda run: changed(run, MemorySampled, {"cuda/cuda:0.peak": probe(GIB)}, label=f"materialized:{CACHE}"),
    ),
    Case(
        "staging is still mapped, and nothing went back",
        "FAIL",
        {"memory.not-reclaimed", "memory.mirror-unknown"},
        run=chain(
            reclaimed("after-release", region_mapped=probe(1), ratio=probe(0.0)),
            grown("rss_anon", 256 * MIB, f"after-release:{STAGE}"),
        ),
    ),
    Case(
        "a ratio above the planned one that the tree's figures do not bear out",
        "FAIL",
        {"memory.not-reclaimed", "memory.mirror-unknown"},
        run=chain(
            reclaimed("after-release", region_mapped=probe(1)),
            grown("rss_anon", 256 * MIB, f"after-release:{STAGE}"),
        ),
    ),
    Case(
        "shared staging unmapped here, and still held elsewhere",
        "FAIL",
        {"memory.not-reclaimed"},
        plan=shared_staging,
        run=reclaimed("after-decode", ratio=probe(0.0)),
    ),
    Case(
        "the region is gone, though the tree grew meanwhile",
        "PASS",
        PASS,
        plan=expects(host_noise_bytes=GIB),
        run=chain(reclaimed("after-decode", ratio=probe(0.4)), grown("rss_anon", 153 * MIB, "after-decode")),
    ),
    Case(
        "staging on the device is gone, and the host never held it",
        "PASS",
        PASS,
        device="gpu",
        plan=part("materializations", STAGE, memory_resource_id="gpu0.vram"),
    ),
    Case(
        "whether the region is mapped could not be read",
        "INDETERMINATE",
        {"memory.reclaim-unknown"},
        run=reclaimed("after-release", region_mapped=UNKNOWN),
    ),
    Case(
        "no reclamation was looked at after the release",
        "INDETERMINATE",
        {"memory.reclaim-unknown", "staging.owners-unknown"},
        run=removed(ReclamationObserved, phase="after-release"),
    ),
    Case(
        "the sample just before the release is missing",
        "INDETERMINATE",
        {"memory.reclaim-unknown"},
        run=removed(MemorySampled, label=f"before-release:{STAGE}"),
    ),
    Case(
        "a cgroup that holds the tree alone fell with it",
        "PASS",
        PASS,
        run=lambda run: changed(run, MemorySampled, {"cgroup/others": probe(0)}),
    ),
    Case(
        "a cgroup that others share kept its memory",
        "PASS",
        PASS,
        run=lambda run: changed(run, MemorySampled, {"cgroup/current": probe(GIB)}),
    ),
    Case(
        "a cgroup that holds the tree alone kept its memory",
        "INDETERMINATE",
        {"memory.reclaim-unknown"},
        run=chain(
            *(
                lambda run, label=label: changed(
                    run,
                    MemorySampled,
                    {"cgroup": {"others": probe(0), "current": size(GIB)}},
                    label=f"{label}:{STAGE}",
                )
                for label in ("before-release", "after-release")
            )
        ),
    ),
    Case(
        "an optional cache that the plan's figures do not expect",
        "FAIL",
        {"memory.expectation-mismatch"},
        plan=optional_cache,
    ),
    Case(
        "the plan expects a mirror that is not there",
        "FAIL",
        {"memory.expectation-mismatch"},
        plan=expects(unexplained_persistent_host_mirror_bytes=4096),
    ),
    Case(
        "a second copy under the name of a planned one",
        "FAIL",
        {"memory.unplanned-persistent", "memory.expectation-mismatch"},
        run=chain(grown("rss_shmem", 256 * MIB), owner_holds(WEIGHTS, 512 * MIB, "after-decode", "closing")),
    ),
    Case(
        "a private copy as large as the shared bank, whose own pages are not there",
        "FAIL",
        {"materialization.claim-contradicted", "memory.mirror-unknown"},
        run=chain(grown("rss_anon", 256 * MIB), grown("rss_shmem", -256 * MIB)),
    ),
    Case(
        "the closing sample twice, a mirror in the first alone",
        "FAIL",
        {"memory.host-mirror"},
        run=lambda run: inserted(
            run,
            [
                with_values(body, {"census/unowned_host_bytes": probe(4096)})
                for body in run
                if isinstance(body, MemorySampled) and body.label == "closing"
            ],
            before=MemorySampled,
            label="closing",
        ),
    ),
    Case(
        "the checkpoint mapped just after the release, and gone later",
        "FAIL",
        {"memory.host-mirror"},
        run=sampled(f"after-release:{STAGE}", checkpoint_mappings=probe(256 * MIB)),
    ),
    Case(
        "pages that nobody explains just after the release, and gone later",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=grown("rss_anon", 128 * MIB, f"after-release:{STAGE}"),
    ),
    Case(
        "the checkpoint mapped at the second of three free samples",
        "FAIL",
        {"memory.host-mirror"},
        run=lambda run: inserted(
            run,
            [
                with_values(body, {"label": "free", "process/checkpoint_mappings": probe(mapped)})
                for body in run
                if isinstance(body, MemorySampled) and body.label == "after-decode"
                for mapped in (0, MIB, 0)
            ],
            before=SourceWatched,
        ),
    ),
    Case(
        "five closing samples",
        "INDETERMINATE",
        {"run.incomplete"},
        run=lambda run: inserted(
            run,
            [body for body in run if isinstance(body, MemorySampled) and body.label == "closing"] * 4,
            before=RunClosed,
        ),
    ),
    Case(
        "a sum below its own parts",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=sampled(f"materialized:{CACHE}", tree_sum=probe(0)),
    ),
    Case(
        "a baseline above its own parts",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=sampled("baseline", tree_sum=probe(556 * MIB)),
    ),
    Case(
        "a baseline that is too high in every figure",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=grown("rss_anon", 256 * MIB, "baseline"),
    ),
    Case(
        "a tree of two that share pages",
        "PASS",
        PASS,
        run=lambda run: [
            with_values(
                body,
                {
                    "process/processes": probe(2),
                    "process/rss_anon": probe(body.process["rss_anon"].value + 100 * MIB),
                    "process/vm_rss": probe(body.process["vm_rss"].value + 100 * MIB),
                    "process/vm_hwm": probe(2 * GIB),
                },
            )
            if isinstance(body, MemorySampled)
            else body
            for body in run
        ],
    ),
    Case(
        "memory counted in KiB",
        "INDETERMINATE",
        {"memory.mirror-unknown"},
        run=sampled("closing", rss_anon=measured(300 * MIB, "KiB", "status")),
    ),
    Case(
        "resident banks of which the kernel knows no page",
        "FAIL",
        {"materialization.claim-contradicted", "memory.mirror-unknown"},
        run=grown("rss_shmem", -(272 * MIB + 256)),
    ),
    Case(
        "the adapter reports unplanned bytes as a word",
        "INDETERMINATE",
        {"memory.unplanned-persistent"},
        run=realized(WEIGHTS, unplanned_bytes=claim("none")),
        unknown={"memory.unplanned-persistent"},
    ),
    Case(
        "a skipped cache that is alive all the same",
        "FAIL",
        {"memory.unplanned-persistent", "memory.expectation-mismatch"},
        plan=optional_cache,
        run=chain(
            never_realised("mat.cache"),
            added(MaterializationSkipped(materialization_id="mat.cache", reason="no room"), ReleaseAuthorized),
            owner_holds("mat.cache", 4096, "after-decode", "closing"),
        ),
    ),
]
