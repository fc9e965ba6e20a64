"""Authority over mutable state, executions and their decode runs."""

from __future__ import annotations

from ledger.bodies import AuthorityEstablished, DecodeRan, Deviation, ExecutionActivated
from ledger.folding.keeping import keep, overflow, slot, step
from ledger.measurement import Measurement
from ledger.run_state import (
    BELIEVED,
    KEPT,
    MOST_IDS,
    OBSERVERS,
    DecodeState,
    DeviationState,
    ExecutionState,
    RunState,
    Seen,
    is_digest,
    trust,
)


def authority(state: RunState, sequence: int, body: AuthorityEstablished) -> None:
    step(state, sequence)
    kept = slot(state, "authorities", state.authorities, body.logical_state_id, list)
    if kept is not None:
        keep(kept, Seen(sequence, body))


def activated(state: RunState, sequence: int, body: ExecutionActivated) -> None:
    step(state, sequence)
    found = slot(state, "executions", state.executions, body.execution_id, ExecutionState)
    if found is not None:
        found.count += 1
        keep(found.activations, Seen(sequence, body))


def decoded(state: RunState, sequence: int, body: DecodeRan) -> None:
    step(state, sequence)
    state.last_decode = sequence
    found = state.decodes.get(body.execution_id)
    if found is None:
        found = slot(state, "decodes", state.decodes, body.execution_id, DecodeState)
        if found is None:
            return
        found.first = sequence
    if body.phase == "prefill":
        found.prefills += 1
        if found.repeated or found.beyond:
            _next_round(found)
        _add_digest(found, found.prefill_digests, sequence, body.output_digest)
        _add_digest(found, found.prefill_token_digests, sequence, body.tokens_digest)
        found.prefill_tokens.add(sequence, body.tokens)
    else:
        found.runs += 1
        if not found.prefills and found.unfilled is None:
            found.unfilled = sequence
        _add_repetition(state, found, sequence, body.repetition)
        _add_digest(found, found.output_digests, sequence, body.output_digest)
        _add_digest(found, found.token_digests, sequence, body.tokens_digest)
        found.tokens.add(sequence, body.tokens)
    found.modes.add(body.mode)
    _add_deviation(found.input, sequence, body.input)
    _add_deviation(found.output, sequence, body.output)
    found.plan_lookups.add(sequence, body.plan_lookups)
    found.elapsed_ns.add(sequence, body.elapsed_ns)


def _next_round(found: DecodeState) -> None:
    found.shortest = found.repeated if found.shortest is None else min(found.shortest, found.repeated)
    if found.beyond and found.gap is None:
        found.gap = min(found.beyond)
    found.repeated, found.beyond = 0, set()


def _add_repetition(state: RunState, found: DecodeState, sequence: int, number: int | None) -> None:
    if number is None or number < 0:
        found.unnumbered = sequence if found.unnumbered is None else found.unnumbered
    elif number == found.repeated:
        found.repeated += 1
        while found.beyond and found.repeated in found.beyond:
            found.beyond.discard(found.repeated)
            found.repeated += 1
    elif number > found.repeated and number not in found.beyond:
        if len(found.beyond) < MOST_IDS:
            found.beyond.add(number)
        else:
            overflow(state, "repetitions out of order")
    elif found.again is None:
        found.again = sequence


def _add_digest(found: DecodeState, kept: dict[str, int], sequence: int, digest: Measurement) -> None:
    value, source = digest.value, digest.source
    if source not in OBSERVERS and found.digest_declared is None:
        found.digest_declared = sequence
    if value in kept and source in BELIEVED:
        return
    if trust(digest) in ("unknown", "claimed") or (source in OBSERVERS and not is_digest(digest)):
        found.digest_unknown = sequence if found.digest_unknown is None else found.digest_unknown
    elif len(kept) < KEPT:
        kept.setdefault(str(value), sequence)


def _add_deviation(found: DeviationState, sequence: int, deviation: Deviation) -> None:
    said = [figure if figure is None else figure.__dict__ for figure in deviation.__dict__.values()]
    if said == found.last:
        return
    found.last = said
    found.exact.add(sequence, deviation.exact)
    found.within_tolerance.add(sequence, deviation.within_tolerance)
    found.max_absolute.add(sequence, deviation.max_absolute)
    found.max_relative.add(sequence, deviation.max_relative)
    found.nan_count.add(sequence, deviation.nan_count)
    found.inf_count.add(sequence, deviation.inf_count)
    if found.why is None and deviation.exact.value == 0:
        found.why = deviation.exact.detail
    if found.failed is None and "failed" in (deviation.max_absolute.status, deviation.max_relative.status):
        found.failed = sequence
