"""Memory samples: those kept whole, and the peaks and gaps of all."""

from __future__ import annotations

from ledger.bodies import MemorySampled
from ledger.folding.keeping import keep_each, overflow
from ledger.folding.stretches import stretch
from ledger.measurement import Measurement
from ledger.run_state import (
    AT_REST,
    BELIEVED,
    BYTES,
    DEMANDED_LABELS,
    MOST_DEMANDED,
    MOST_IDS,
    MOST_LABELS,
    NUMBER,
    READ_AT_EACH_SAMPLE,
    STANDING_LABELS,
    VALUED,
    Extremes,
    Figure,
    RunState,
    Seen,
    trust,
)


def sampled(state: RunState, sequence: int, body: MemorySampled) -> None:
    state.samples_seen += 1
    label, census = body.label, body.census
    kept = state.samples.get(label)
    first_baseline = kept is None and label == "baseline" and state.first_step is None
    demanded = label in STANDING_LABELS or label.startswith(DEMANDED_LABELS)
    if kept is not None and demanded:
        keep_each(state, f"samples {label}", kept, Seen(sequence, body))
    elif kept is not None:
        kept[1:] = [Seen(sequence, body)]
        stretch(state, sequence, body)
    else:
        if len(state.samples) < (MOST_DEMANDED if demanded else MOST_LABELS) or label in STANDING_LABELS:
            state.samples[label] = [Seen(sequence, body)]
        elif demanded:
            overflow(state, "samples")
        else:
            stretch(state, sequence, body)
        if len(state.labels) < MOST_IDS:
            state.labels.setdefault(label, sequence)
    _read(state, sequence, "process/", body.process, READ_AT_EACH_SAMPLE, raises=not first_baseline)
    if body.cuda:
        _read(state, sequence, "cuda/", body.cuda, None, raises=not first_baseline)
    # A witness sees no release; the label says that the sample was taken after one.
    if (
        state.first_release is not None
        or state.at_rest
        or label in ("after-decode", "closing")
        or label.startswith("after-release:")
    ):
        _at_rest(state, sequence, body)
    if census is not None:
        figures = (census.unowned_host_bytes, *census.by_owner.values(), *census.evidence_host_by_role.values())
        if any(
            figure.value is None or trust(figure, BYTES) not in ("observed", "declared") for figure in figures
        ) or not _is_number(census.unowned_host_storages):
            state.sample_gaps.setdefault("census/owners", sequence)
        if trust(census.unowned_device_bytes, BYTES) not in ("observed", "declared"):
            state.sample_gaps.setdefault("census/unowned_device_bytes", sequence)


def _is_number(measurement: Measurement) -> bool:
    return trust(measurement) in ("observed", "declared") and isinstance(measurement.value, NUMBER)


def _at_rest(state: RunState, sequence: int, body: MemorySampled) -> None:
    """Raise what no sample may show any more by what this one shows."""
    census = body.census
    if not state.at_rest:
        state.at_rest = {name: Extremes(unit=BYTES) for name in AT_REST}
    mapped, host, device = state.at_rest.values()
    mapped.add(sequence, body.process.get("checkpoint_mappings"))
    if census is not None:
        host.add(sequence, census.unowned_host_bytes)
        device.add(sequence, census.unowned_device_bytes)


def _read(
    state: RunState,
    sequence: int,
    prefix: str,
    figures: dict[str, Measurement],
    judged: frozenset[str] | None,
    *,
    raises: bool,
) -> None:
    """Raise the running peaks by a sample's figures, and note which judged ones it could not read.

    The baseline raises none: its peaks are of what came before the run (`raises`).
    """
    peaks = state.peaks
    if judged is not None and not judged <= figures.keys():
        for key in judged - figures.keys():
            state.sample_gaps.setdefault(prefix + key, sequence)
    for key, measurement in figures.items():
        if judged is not None and key not in judged:
            continue
        value = measurement.value
        if (
            isinstance(value, NUMBER)
            and value >= 0
            and measurement.unit == BYTES
            and measurement.status in VALUED
            and measurement.source in BELIEVED
        ):
            if not raises:
                continue
            name = prefix + key
            highest = peaks.get(name)
            if highest is None:
                if len(peaks) < MOST_IDS:
                    peaks[name] = Figure(sequence, value)
            elif value > highest.value:
                peaks[name] = Figure(sequence, value)
        else:
            name = prefix + key
            if name not in state.sample_gaps and len(state.sample_gaps) < MOST_IDS:
                state.sample_gaps[name] = sequence
