"""What a plan for a causal LM says: its units and representations, their layouts, the options, and the drafted lists."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from glob import escape
from typing import Any

import torch

from adapters import transformers_model as lm
from ledger.errors import TallyError
from ledger.plan import Materialization, keys_digest
from realizer.adapter import Draft, DraftRequest, Layout, pack
from realizer.checkpoint import Checkpoint

WEIGHTS, BUFFERS, CACHE, BASELINE = "state.weights", "state.buffers", "state.kv-cache", "state.replay-baseline"
UNITS = (WEIGHTS, BUFFERS, CACHE, BASELINE)

STAGED, RING = "checkpoint-native-host", "checkpoint-stream-ring"
RESIDENT = {
    WEIGHTS: "checkpoint-native-resident",
    BUFFERS: "model-computed-buffers",
    CACHE: "transformers-static-cache",
    BASELINE: "transformers-static-cache-snapshot",
}
"""Representation of each unit where it is to stay. Staging has its own two: as on disk, or a ring of bytes."""

EXECUTION, LINEAGE = "exec.decode", "kv-cache-epoch-1"
DEFAULTS: Mapping[str, int] = {"max_cache_length": 256, "decode_steps": 8}
MIB = 1024 * 1024
DEVICE_WINDOW_BYTES = 256 * MIB
"""The ring to a device when nobody says: enough to keep copies in flight."""


def host_window_bytes() -> int:
    """The ring between host ranges when nobody says: one cache-sized slot for each reader of this machine."""
    return min(16, os.cpu_count() or 1) * MIB


def read_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options with defaults: max_cache_length and decode_steps (tokens), attention, window_bytes, dtype.

    Numbers may come as text, as a command line gives them. Raises TallyError for one that is unknown, of another type,
    no positive integer, or too small a cache.
    """
    known = {*DEFAULTS, "attention", "window_bytes", "dtype"}
    if odd := sorted(set(given) - known):
        raise TallyError(f"causal_lm has no option {odd[0]!r}", f"options: {', '.join(sorted(known))}")
    options = {**DEFAULTS, **{name: value for name, value in given.items() if value is not None}}
    for name in ("max_cache_length", "decode_steps", "window_bytes"):
        if name not in options:
            continue
        options[name] = _integer(name, options[name])
        if options[name] < 1:
            raise TallyError(f"option {name} is {options[name]}; it has to be at least 1")
    if options["decode_steps"] >= options["max_cache_length"]:
        raise TallyError(
            f"a cache of {options['max_cache_length']} tokens has no room for a prompt and {options['decode_steps']} steps",
            "give a larger max_cache_length",
        )
    for name in ("attention", "dtype"):
        if name in options and not isinstance(options[name], str):
            raise TallyError(f"option {name} is {options[name]!r}, not a name")
    return options


def _integer(name: str, value: Any) -> int:
    """A whole number or its digits; neither 1.5 nor true is one, though Python would make it so."""
    try:
        if isinstance(value, int | str) and not isinstance(value, bool):
            return int(value)
    except ValueError:
        pass
    raise TallyError(f"option {name} is {value!r}, not an integer")


def check_dtype(options: Mapping[str, Any], dtype: torch.dtype) -> None:
    """Raises TallyError when the options ask for another dtype than the checkpoint's: nothing here converts."""
    asked, found = options.get("dtype"), lm.NAMES[dtype]
    if asked is not None and asked != found:
        raise TallyError(
            f"option dtype is {asked!r}; this checkpoint's tensors are {found}", f"leave it out or say {found}"
        )


Places = list[tuple[str, str, tuple[int, ...], tuple[str, ...]]]


def layouts_of(model: Any, bindings: Sequence[lm.Binding], cache: Any) -> dict[str, Layout]:
    """Each unit's layout where it stays: weights in the files' order, buffers, cache, and the cache again."""

    def computed(name: str, tensor: torch.Tensor) -> tuple[str, str, tuple[int, ...], tuple[str, ...]]:
        return name, lm.NAMES[tensor.dtype], tuple(tensor.shape), ()

    weights: Places = [(b.names[0], b.entry.dtype, b.entry.shape, (b.entry.key,)) for b in bindings]
    buffers = dict(model.named_buffers(remove_duplicate=False))
    slots: Places = [computed(name, getattr(layer, attribute)) for name, layer, attribute in lm.cache_slots(cache)]
    return {
        WEIGHTS: pack(RESIDENT[WEIGHTS], weights),
        BUFFERS: pack(RESIDENT[BUFFERS], [computed(name, buffers[name]) for name in lm.buffer_names(model)]),
        CACHE: pack(RESIDENT[CACHE], slots),
        BASELINE: pack(RESIDENT[BASELINE], slots),
    }


def representation_of(planned: Materialization) -> str:
    if planned.role == "staging":
        return STAGED if planned.streamed_bytes is None else RING
    return RESIDENT[planned.logical_state_id]


def draft(model: Any, checkpoint: Checkpoint, request: DraftRequest) -> Draft:
    """The adapter's lists for a plan, with exact bytes; the model is on the meta device."""
    asked = read_options(request.options)
    check_dtype(asked, model.dtype)
    without = {*lm.ignored_keys(model, checkpoint), *_second_ends(model, checkpoint)}
    bindings = lm.map_keys(model, checkpoint, without)
    layouts = layouts_of(model, bindings, lm.meta_cache(model, asked["max_cache_length"]))
    options: dict[str, Any] = {
        "max_cache_length": asked["max_cache_length"],
        "decode_steps": asked["decode_steps"],
        "attention": lm.attention_of(model),
        "dtype": lm.NAMES[model.dtype],
    }
    keys = [binding.entry.key for binding in bindings]
    selection = {
        "patterns": ["*"],
        "exclude": sorted(escape(key) for key in without),
        "count": len(keys),
        "keys_digest": keys_digest(keys),
    }
    return _lists(request, layouts, selection, options, asked.get("window_bytes"))


def _second_ends(model: Any, checkpoint: Checkpoint) -> list[str]:
    """Keys of ties stored twice with equal bytes: one end suffices. Ties stored with different bytes stay two."""
    ends: list[str] = []
    slots = model.state_dict(keep_vars=True)
    first: dict[int, lm.Binding] = {}
    for binding in lm.map_keys(model, checkpoint):
        other = first.setdefault(id(slots[binding.names[0]]), binding)
        if other is not binding and _equal_bytes(checkpoint, other, binding):
            ends.append(binding.entry.key)
    return ends


def _equal_bytes(checkpoint: Checkpoint, first: lm.Binding, second: lm.Binding) -> bool:
    paths = {shard.name: shard.path for shard in checkpoint.files}
    with paths[first.entry.file].open("rb") as one, paths[second.entry.file].open("rb") as two:
        one.seek(first.entry.start)
        two.seek(second.entry.start)
        for at in range(0, first.entry.bytes, MIB):
            count = min(MIB, first.entry.bytes - at)
            if one.read(count) != two.read(count):
                return False
    return True


def _lists(
    request: DraftRequest,
    layouts: Mapping[str, Layout],
    selection: dict[str, Any],
    options: dict[str, Any],
    window: int | None,
) -> Draft:
    ram = request.resources["system-ram"]
    cuda = torch.device(request.device).type == "cuda"
    stays = request.resources["accelerator-vram" if cuda else "shared-memory"]
    total = layouts[WEIGHTS].bytes
    staging: dict[str, Any] = {"representation": STAGED, "expected_bytes": total}
    if request.staging == "streamed":
        window = min(window or (DEVICE_WINDOW_BYTES if cuda else host_window_bytes()), total)
        staging = {"representation": RING, "expected_bytes": -(-window // 4096) * 4096, "streamed_bytes": total}
    elif request.staging != "full":
        raise TallyError(f"staging {request.staging!r} is neither full nor streamed")

    def unit(unit_id: str, semantic_class: str, **more: Any) -> dict[str, Any]:
        return {"id": unit_id, "semantic_class": semantic_class, **more}

    def materialization(name: str, unit_id: str, role: str, place: str, **more: Any) -> dict[str, Any]:
        path = request.links.get((request.backing_source_id if place == ram else ram, place))
        return {
            "id": name,
            "logical_state_id": unit_id,
            "memory_resource_id": place,
            "role": role,
            "persistence": "transient" if role == "staging" else "persistent",
            "requirement": "required",
            **({"path_id": path} if path and unit_id == WEIGHTS else {}),
            **({} if role == "staging" else {"representation": RESIDENT[unit_id]}),
            **({} if role == "staging" else {"expected_bytes": layouts[unit_id].bytes}),
            **more,
        }

    units = [
        unit(WEIGHTS, "immutable_source", backing_source_id=request.backing_source_id, selection=selection),
        unit(BUFFERS, "derived_reconstructible", reconstruction_inputs=[WEIGHTS]),
        unit(CACHE, "mutable_authoritative"),
        unit(BASELINE, "derived_reconstructible", reconstruction_inputs=[CACHE]),
    ]
    materializations = [
        materialization("mat.weights.stage", WEIGHTS, "staging", ram, **staging),
        materialization("mat.weights.resident", WEIGHTS, "required_residency", stays),
        materialization("mat.buffers.resident", BUFFERS, "required_residency", stays),
        materialization("mat.kv-cache", CACHE, "mutable_authority", stays),
        materialization("mat.replay-baseline", BASELINE, "required_test_state", stays),
    ]
    needed = [WEIGHTS, BUFFERS, CACHE]
    if not layouts[BUFFERS].places:  # nothing is computed: no such state
        units = [item for item in units if item["id"] != BUFFERS]
        materializations = [item for item in materializations if item["logical_state_id"] != BUFFERS]
        needed.remove(BUFFERS)
    hosts = [place for kind, place in sorted(request.resources.items(), reverse=True) if kind != "accelerator-vram"]
    return Draft(
        logical_state_units=units,
        materializations=materializations,
        authorities=[{"lineage": LINEAGE, "logical_state_id": CACHE, "materialization_id": "mat.kv-cache"}],
        execution=[
            {
                "id": EXECUTION,
                "compute_unit_id": request.compute_unit_id,
                "strategy_unit": "static-cache-decode",
                "required_state": [
                    {"logical_state_id": name, "memory_resources": [stays], "representations": [RESIDENT[name]]}
                    for name in needed
                ],
            }
        ],
        forbidden_persistent_materializations=[
            {"logical_state_id": WEIGHTS, "memory_resource_id": place} for place in hosts if place != stays
        ],
        options=options,
        plan_version="1",
    )
