"""Family `decode`."""

from __future__ import annotations

from ledger.bodies import DecodeRan, ExecutionActivated, MemorySampled, ReferenceBound, SourceWatched
from ledger.measurement import measured
from tests.builders.runs import GIB, changed, decoded, inserted, moved
from tests.ledger.judge_cases.case import FAILED, UNKNOWN, Case, claim, probe
from tests.ledger.judge_cases.steps import PASS, accessed, added, correctness, decode, removed, repeated, watch

DECODES = [
    Case("one repetition of four is missing", "FAIL", {"decode.missing"}, run=removed(DecodeRan, repetition=2)),
    Case("prefill is missing", "FAIL", {"decode.missing"}, run=removed(DecodeRan, phase="prefill")),
    Case(
        "one repetition four times",
        "FAIL",
        {"decode.missing"},
        run=lambda run: changed(run, DecodeRan, {"repetition": 0}, phase="repetition"),
    ),
    Case(
        "decode before activation",
        "FAIL",
        {"decode.before-activation"},
        run=lambda run: moved(run, DecodeRan, phase="prefill", before=ExecutionActivated),
    ),
    Case(
        "prefill after the repetitions",
        "FAIL",
        {"decode.missing"},
        run=lambda run: moved(run, DecodeRan, phase="prefill", before=MemorySampled, where={"label": "after-decode"}),
    ),
    Case(
        "a second prefill after the repetitions",
        "FAIL",
        {"decode.missing"},
        run=added(decoded("exec.decode", "prefill", None), MemorySampled, label="after-decode"),
    ),
    Case(
        "prefill and repetitions once more, in another mode",
        "PASS",
        PASS,
        run=added(
            [
                decoded("exec.decode", "prefill", None),
                *(
                    decoded("exec.decode", "repetition", number).model_copy(update={"mode": "cuda-graph"})
                    for number in range(4)
                ),
            ],
            MemorySampled,
            label="after-decode",
        ),
    ),
    Case(
        "a second prefill among the repetitions",
        "FAIL",
        {"decode.missing"},
        run=added(decoded("exec.decode", "prefill", None), DecodeRan, repetition=2),
    ),
    Case(
        "more repetitions than planned, numbered on",
        "PASS",
        PASS,
        run=added(
            [decoded("exec.decode", "repetition", number) for number in (4, 5)], MemorySampled, label="after-decode"
        ),
    ),
    Case(
        "a repetition numbered far beyond the planned ones",
        "FAIL",
        {"decode.missing"},
        run=added(decoded("exec.decode", "repetition", 99), MemorySampled, label="after-decode"),
    ),
    Case(
        "a repetition more, without a number",
        "FAIL",
        {"decode.missing"},
        run=added(decoded("exec.decode", "repetition", None), MemorySampled, label="after-decode"),
    ),
    Case(
        "a repetition more, with the number of another",
        "FAIL",
        {"decode.missing"},
        run=added(decoded("exec.decode", "repetition", 3), MemorySampled, label="after-decode"),
    ),
    Case("no reference", "FAIL", {"decode.reference-missing"}, run=removed(ReferenceBound)),
    Case(
        "the reference was bound after decode",
        "FAIL",
        {"decode.reference-missing"},
        run=lambda run: moved(run, ReferenceBound, before=SourceWatched),
    ),
    Case(
        "the reference's digest could not be computed",
        "INDETERMINATE",
        {"decode.reference-missing"},
        run=lambda run: changed(run, ReferenceBound, {"digest": UNKNOWN}),
        unknown={"decode.reference-missing"},
    ),
    Case(
        "another reference than the planned one",
        "FAIL",
        {"decode.reference-mismatch"},
        run=lambda run: changed(run, ReferenceBound, {"digest": probe("sha256:" + "13" * 32)}),
    ),
    Case(
        "the reference swapped before the repetitions",
        "FAIL",
        {"decode.reference-mismatch"},
        run=lambda run: inserted(
            run,
            [
                body.model_copy(update={"digest": probe("sha256:" + "13" * 32)})
                for body in run
                if isinstance(body, ReferenceBound)
            ],
            before=DecodeRan,
            phase="repetition",
        ),
    ),
    Case(
        "one repetition deviates in one element",
        "FAIL",
        {"decode.deviation"},
        run=decode({"output.exact": probe(0), "output.max_absolute": probe(0.5)}, repetition=3),
    ),
    Case(
        "equal by its own word, with a deviation above zero",
        "FAIL",
        {"decode.deviation"},
        run=decode({"output.max_absolute": probe(0.5)}, repetition=3),
    ),
    Case(
        "outside the planned tolerance",
        "FAIL",
        {"decode.deviation"},
        plan=correctness(mode="tolerance", atol=0.01, rtol=0.01),
        run=decode({"output.within_tolerance": probe(0)}, repetition=1),
    ),
    Case(
        "what went in deviates",
        "FAIL",
        {"decode.deviation"},
        run=decode({"input.exact": probe(0)}, phase="prefill"),
    ),
    Case(
        "whether it was equal is not known",
        "INDETERMINATE",
        {"decode.deviation"},
        run=decode({"output.exact": UNKNOWN}, repetition=0),
        unknown={"decode.deviation"},
    ),
    Case(
        "equality is the adapter's claim",
        "INDETERMINATE",
        {"decode.deviation"},
        run=decode({"output.exact": claim(1)}, repetition=0),
        unknown={"decode.deviation"},
    ),
    Case("a NaN came out", "FAIL", {"decode.non-finite"}, run=decode({"output.nan_count": probe(1)}, repetition=0)),
    Case("an infinity went in", "FAIL", {"decode.non-finite"}, run=decode({"input.inf_count": probe(2)}, repetition=0)),
    Case(
        "the largest deviation is no number",
        "FAIL",
        {"decode.non-finite", "decode.deviation"},
        run=decode({"output.max_absolute": FAILED}, repetition=0),
        unknown={"decode.deviation"},
    ),
    Case(
        "NaNs were not counted",
        "INDETERMINATE",
        {"decode.non-finite"},
        run=decode({"output.nan_count": UNKNOWN}, repetition=0),
        unknown={"decode.non-finite"},
    ),
    Case(
        "the last repetition gave other bytes",
        "FAIL",
        {"decode.not-repeatable"},
        run=decode({"output_digest": probe("sha256:" + "ee" * 32)}, repetition=3),
    ),
    Case(
        "the last repetition gave other tokens, within tolerance",
        "FAIL",
        {"decode.not-repeatable"},
        plan=correctness(mode="tolerance", atol=0.01, rtol=0.01),
        run=decode({"tokens_digest": probe("sha256:" + "ee" * 32)}, repetition=3),
    ),
    Case(
        "the output was not digested",
        "INDETERMINATE",
        {"decode.not-repeatable"},
        run=decode({"output_digest": UNKNOWN}, repetition=3),
        unknown={"decode.not-repeatable"},
    ),
    Case(
        "the tree opened the checkpoint during decode",
        "FAIL",
        {"decode.source-accessed"},
        run=added(accessed("tree"), SourceWatched),
    ),
    Case(
        "the watch counted an access of the tree", "FAIL", {"decode.source-accessed"}, run=watch(tree_accesses=probe(1))
    ),
    Case("the tree still maps the checkpoint", "FAIL", {"decode.source-accessed"}, run=watch(mapped_files=probe(1))),
    Case(
        "the tree still holds the checkpoint open",
        "FAIL",
        {"decode.source-accessed"},
        run=watch(open_descriptors=probe(2)),
    ),
    Case(
        "somebody else opened the checkpoint",
        "INDETERMINATE",
        {"decode.access-unknown"},
        run=added(accessed("other"), SourceWatched),
    ),
    Case("nobody watched the checkpoint", "INDETERMINATE", {"decode.access-unknown"}, run=removed(SourceWatched)),
    Case("the watch was never armed", "INDETERMINATE", {"decode.access-unknown"}, run=watch(armed=probe(0))),
    Case("the watch lost events", "INDETERMINATE", {"decode.access-unknown"}, run=watch(overflowed=probe(1))),
    Case(
        "the checkpoint is on a network filesystem",
        "INDETERMINATE",
        {"decode.access-unknown"},
        run=watch(network_filesystem=probe(1)),
    ),
    Case(
        "a gigabyte was read during decode, from a file nobody watched",
        "INDETERMINATE",
        {"decode.access-unknown"},
        run=watch(read_bytes=probe(GIB)),
    ),
    Case(
        "accesses are a literal zero of the adapter",
        "INDETERMINATE",
        {"decode.access-unknown"},
        run=watch(tree_accesses=claim(0)),
    ),
    Case(
        "the watch was summed up before decode",
        "INDETERMINATE",
        {"decode.access-unknown"},
        run=lambda run: moved(run, SourceWatched, before=ExecutionActivated),
    ),
    Case("decode looked into the plan", "FAIL", {"decode.plan-consulted"}, run=decode({"plan_lookups": probe(3)})),
    Case(
        "whether decode looked into the plan is not known",
        "INDETERMINATE",
        {"decode.plan-consulted"},
        run=decode({"plan_lookups": UNKNOWN}, phase="prefill"),
        unknown={"decode.plan-consulted"},
    ),
    Case(
        "decode gave no token",
        "FAIL",
        {"decode.missing", "decode.not-repeatable", "decode.deviation"},
        run=decode({"tokens": probe(0)}, repetition=1),
    ),
    Case(
        "the prefill gave other tokens than the reference says",
        "FAIL",
        {"decode.deviation"},
        run=decode({"tokens_digest": probe("sha256:" + "ab" * 32)}, phase="prefill"),
    ),
    Case(
        "the prefill's tokens were cut short",
        "FAIL",
        {"decode.deviation"},
        run=decode({"tokens": probe(3)}, phase="prefill"),
    ),
    Case(
        "how many tokens came out is not known",
        "INDETERMINATE",
        {"decode.missing"},
        run=decode({"tokens": UNKNOWN}, repetition=1),
        unknown={"decode.missing"},
    ),
    Case(
        "how long a repetition took is not known",
        "INDETERMINATE",
        {"decode.missing"},
        run=decode({"elapsed_ns": UNKNOWN}, repetition=1),
        unknown={"decode.missing"},
    ),
    Case("a watch without means", "INDETERMINATE", {"decode.access-unknown"}, run=watch(means=[])),
    Case(
        "bytes read, counted in KiB",
        "INDETERMINATE",
        {"decode.access-unknown"},
        run=watch(read_bytes=measured(0, "KiB", "rchar")),
    ),
    Case(
        "another reference, put back again before decode",
        "INDETERMINATE",
        {"run.incomplete"},
        run=repeated(ReferenceBound, {"digest": probe("sha256:" + "13" * 32)}, at=3, total=5),
    ),
    Case(
        "a word in place of the output's digest, the same each time",
        "INDETERMINATE",
        {"decode.not-repeatable"},
        run=decode({"output_digest": probe("none")}),
        unknown={"decode.not-repeatable"},
    ),
]
