"""Memory samples: those kept whole, and the peaks and gaps of all."""

from __future__ import annotations

from typing import Any

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
    process, cuda = body.process, body.cuda
    for key, name in _PROCESS:
        if key in process:
            _read(state, sequence, name, process[key], raises=not first_baseline)
        else:
            state.sample_gaps.setdefault(name, sequence)
    for key in cuda:
        _read(state, sequence, "cuda/" + key, cuda[key], raises=not first_baseline)
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
        if "census/owners" not in state.sample_gaps and not (
            all(map(_is_size, figures)) and _is_number(census.unowned_host_storages)
        ):
            state.sample_gaps["census/owners"] = sequence
        if not _is_size(census.unowned_device_bytes):
            state.sample_gaps.setdefault("census/unowned_device_bytes", sequence)


_PROCESS = tuple((key, f"process/{key}") for key in sorted(READ_AT_EACH_SAMPLE))


def _is_number(measurement: Measurement) -> bool:
    """It can be believed, and is no negative number (`trust` says so of many more kinds of values)."""
    said = measurement.__dict__  # one look at the model: it is much dearer than one at a dict
    value = said["value"]
    return isinstance(value, NUMBER) and value >= 0 and said["status"] in VALUED and said["source"] in BELIEVED


def _is_size(measurement: Measurement) -> bool:
    said = measurement.__dict__
    value = said["value"]
    return (
        said["unit"] == BYTES
        and isinstance(value, NUMBER)
        and value >= 0
        and said["status"] in VALUED
        and said["source"] in BELIEVED
    )


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


def _read(state: RunState, sequence: int, name: str, measurement: Measurement, *, raises: bool) -> None:
    """Raise a running peak by a sample's figure, or note that it could not be read.

    The baseline raises none: its peaks are of what came before the run (`raises`).
    """
    if _is_size(measurement):
        if raises:
            value: Any = measurement.value
            peaks = state.peaks
            highest = peaks.get(name)
            if highest is None:
                if len(peaks) < MOST_IDS:
                    peaks[name] = Figure(sequence, value)
            elif value > highest.value:
                peaks[name] = Figure(sequence, value)
    elif name not in state.sample_gaps and len(state.sample_gaps) < MOST_IDS:
        state.sample_gaps[name] = sequence
