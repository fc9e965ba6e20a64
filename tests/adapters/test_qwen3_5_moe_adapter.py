"""A tiny block planned, realised in ranges of its own, and decoded: both forms, bit for bit against an unplanned load."""

import gc
import json
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from adapters.qwen3_5_moe import Qwen35Moe, layout
from adapters.qwen3_5_moe.graph import DecodeGraph
from adapters.qwen3_5_moe.planning import BASELINE, MUTABLE, REST, ROUTED, _numbers
from adapters.qwen3_5_moe.repack import TORCH_DTYPES
from adapters.qwen3_5_moe.shape import TINY, BlockShape
from adapters.qwen3_5_moe.synth import write_checkpoint
from adapters.qwen3_5_moe.unplanned import Source, assemble
from ledger.canonical import r1_file
from ledger.errors import CheckpointError, NotFound, RealizationFailed, TallyError
from ledger.plan import TALLY_SCHEMA, Plan, keys_digest, parse_plan
from realizer.adapter import DraftRequest, PlanHandle, ReferenceFixture
from realizer.checkpoint import Checkpoint, open_checkpoint
from realizer.content import resident_digests
from realizer.loader import Loader
from realizer.memory import MemoryRange, RangeInUse, Ranges

MIDDLE = replace(TINY, start=1, end=3)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    directory = tmp_path_factory.mktemp("qwen") / "checkpoint"
    write_checkpoint(TINY, directory)
    return open_checkpoint(str(directory))


def document(checkpoint: Checkpoint, staging: str = "full", device: str = "cpu", **options: int) -> dict[str, Any]:
    """A plan document as `tally plan draft` makes it, on a machine of round numbers."""
    cuda = device.startswith("cuda")
    stays = {"id": "gpu0.vram", "kind": "accelerator-vram", "capacity_bytes": 10**12}
    if not cuda:
        stays = {"id": "node-a.shm", "kind": "shared-memory", "capacity_bytes": 10**12, "parent": "node-a.ram"}
    unit = {"id": "gpu0" if cuda else "cpu0", "kind": "cuda-gpu" if cuda else "cpu", "memory_resources": [stays["id"]]}
    request = DraftRequest(
        device=device,
        staging=staging,
        compute_unit_id=str(unit["id"]),
        backing_source_id="checkpoint",
        resources={"system-ram": "node-a.ram", str(stays["kind"]): str(stays["id"])},
        links={("checkpoint", "node-a.ram"): "checkpoint-to-ram", ("node-a.ram", str(stays["id"])): "ram-on"},
        options=options,
    )
    draft = Qwen35Moe.draft(checkpoint, request)
    return {
        "schema": TALLY_SCHEMA,
        "plan_version": draft.plan_version,
        "model": {"repository": "synthetic/qwen3_5_moe", "revision": "x"},
        "resources": {
            "swarm_id": "local",
            "nodes": [
                {
                    "id": "node-a",
                    "compute_units": [unit | ({"device_uuid": "GPU-0"} if cuda else {})],
                    "memory_resources": [
                        {"id": "node-a.ram", "kind": "system-ram", "capacity_bytes": 10**12},
                        stays,
                    ],
                }
            ],
            "backing_sources": [{"id": "checkpoint", "kind": "checkpoint"}],
            "links": [
                {"id": "checkpoint-to-ram", "kind": "bounded-read", "source": "checkpoint", "target": "node-a.ram"},
                {"id": "ram-on", "kind": "host-copy", "source": "node-a.ram", "target": stays["id"]},
            ],
        },
        "logical_state_units": draft.logical_state_units,
        "materializations": draft.materializations,
        "authorities": draft.authorities,
        "execution": draft.execution,
        "forbidden_persistent_materializations": draft.forbidden_persistent_materializations,
        "memory_expectations": {},
        "adapter": {"name": Qwen35Moe.name, "options": draft.options},
    }


def parsed(made: dict[str, Any]) -> Plan:
    return parse_plan(r1_file(made))


@dataclass
class Realised:
    """What an engine holds while an adapter works: here without events, probes or verdicts."""

    plan: Plan
    handle: PlanHandle
    adapter: Qwen35Moe
    ranges: Ranges
    memories: dict[str, MemoryRange]
    loader: Loader

    def release(self) -> None:
        for planned in self.plan.document.materializations:
            if planned.role == "staging":
                self.adapter.release(planned.id)
                self.ranges.free(self.memories[planned.id])


@pytest.fixture
def realised(checkpoint: Checkpoint) -> Iterator[Any]:
    made: list[Realised] = []

    def realise(plan: Plan, source: Checkpoint = checkpoint) -> Realised:
        handle = PlanHandle(plan)
        adapter = Qwen35Moe(handle, source)
        assert adapter.violations() == []
        run = Realised(plan, handle, adapter, Ranges(), {}, Loader(source, threads=2, digests=True))
        for planned in plan.document.materializations:
            kind = plan.memory_resources[planned.memory_resource_id].kind
            made_layout = adapter.layout(planned.id)
            length = planned.expected_bytes if planned.streamed_bytes else made_layout.length
            memory = run.ranges.allocate(kind, length, owner=planned.id)
            run.memories[planned.id] = memory
            claim = adapter.realize(planned.id, memory, run.loader)
            assert (claim.representation, claim.bytes) == (planned.representation, planned.expected_bytes)
        made.append(run)
        return run

    yield realise
    for run in made:
        run.adapter = None  # type: ignore[assignment]
        gc.collect()
        assert run.ranges.free_all() == []


def decode(adapter: Qwen35Moe, fixture: ReferenceFixture) -> None:
    """Prefill and four repetitions, each bit-equal to the fixture."""
    first = adapter.prefill(fixture)
    assert torch.equal(first.input, fixture.tensors["prefill.input"])
    assert torch.equal(first.output, fixture.tensors["prefill.output"])
    adapter.save_baseline()
    for _ in range(4):
        adapter.restore_baseline()
        step = adapter.decode(fixture)
        assert torch.equal(step.input, fixture.tensors["decode.input"])
        assert torch.equal(step.output, fixture.tensors["decode.output"])
        assert list(step.tokens) == fixture.tensors["decode.tokens"].tolist()


@pytest.mark.parametrize("staging", ["full", "streamed"])
def test_a_planned_block_decodes_bit_for_bit_as_an_unplanned_one(
    checkpoint: Checkpoint, realised: Any, staging: str
) -> None:
    plan = parsed(document(checkpoint, staging))
    fixture = Qwen35Moe.reference(plan, checkpoint, None, [])
    run = realised(plan)
    looked = run.handle.lookups
    run.release()
    assert run.adapter.activate("exec.block-a") == torch.device("cpu")
    decode(run.adapter, fixture)
    assert run.handle.lookups == looked
    assert run.adapter.decode_modes() == ("eager",)


def test_a_small_ring_carries_the_same_bytes(checkpoint: Checkpoint, realised: Any) -> None:
    plan = parsed(document(checkpoint, "streamed", window_bytes=4096, non_routed_window_bytes=8192))
    rings = [m for m in plan.document.materializations if m.role == "staging"]
    assert [ring.expected_bytes for ring in rings] == [4096, 8192]
    run = realised(plan)
    decode(run.adapter, Qwen35Moe.reference(plan, checkpoint, None, list(range(20))))
    assert run.adapter.model.embeddings is not None


@pytest.mark.parametrize("staging", ["full", "streamed"])
def test_the_middle_of_a_model_takes_hidden_states(checkpoint: Checkpoint, realised: Any, staging: str) -> None:
    plan = parsed(document(checkpoint, staging, start_layer=1, end_layer=3))
    fixture = Qwen35Moe.reference(plan, checkpoint, None, [])
    assert fixture.tensors["prefill.input"].dtype is torch.bfloat16
    run = realised(plan)
    assert run.adapter.model.embeddings is None
    decode(run.adapter, fixture)


@pytest.mark.parametrize("staging", ["full", "streamed"])
def test_resident_bytes_are_what_an_unplanned_load_makes(checkpoint: Checkpoint, realised: Any, staging: str) -> None:
    run = realised(parsed(document(checkpoint, staging)))
    with Source(checkpoint) as source:
        for name in ("mat.non-routed.shm", "mat.routed.shm"):
            expected = dict(assemble(run.adapter.layout(name), source))
            held = run.adapter._tensors[name]
            assert held.keys() == expected.keys()
            for place, tensor in held.items():
                assert torch.equal(tensor.view(torch.uint8), expected[place].view(torch.uint8)), place


def test_decay_parameters_in_f32_give_the_same_block(checkpoint: Checkpoint, realised: Any, tmp_path: Path) -> None:
    """Checkpoints differ in how they keep A_log and dt_bias; the layout holds F32 either way."""
    shutil.copytree(checkpoint.directory, tmp_path / "other")
    for path in (tmp_path / "other").glob("*.safetensors"):
        tensors = {
            key: tensor.float() if key.endswith((".A_log", ".dt_bias")) else tensor
            for key, tensor in load_file(path).items()
        }
        save_file(tensors, path)
    other = open_checkpoint(str(tmp_path / "other"))
    fixture = Qwen35Moe.reference(parsed(document(checkpoint)), checkpoint, None, [])
    run = realised(parsed(document(other)), other)
    decode(run.adapter, fixture)


def contents(run: Realised, name: str) -> tuple[dict[str, str], dict[str, str]]:
    """(read back, as the sources say) digests of every part of a materialization whose content can be checked."""
    content = run.adapter.content(name)
    derived = run.adapter.derived_digests(name, run.loader)
    expected = {
        place.name: derived[place.name] if place.derived else run.loader.digests[place.sources[0]]
        for place in content.places
    }
    return resident_digests(content, run.memories[name], 1), expected


@pytest.mark.parametrize("staging", ["full", "streamed"])
def test_content_agrees_with_the_source_tensor_by_tensor(checkpoint: Checkpoint, realised: Any, staging: str) -> None:
    run = realised(parsed(document(checkpoint, staging)))
    seen = 0
    for name in ("mat.non-routed.shm", "mat.routed.shm"):
        found, expected = contents(run, name)
        assert found == expected
        seen += len(found)
        covered = sorted((p.offset, p.bytes) for p in run.adapter.content(name).places)
        assert sum(size for _, size in covered) == run.adapter.layout(name).bytes
    assert seen > 400


@pytest.mark.parametrize("place", ["layers.2.experts.down.packed", "layers.0.experts.gate_up.global"])
def test_one_flipped_byte_in_a_bank_is_found(checkpoint: Checkpoint, realised: Any, place: str) -> None:
    run = realised(parsed(document(checkpoint)))
    tensor = run.adapter._tensors["mat.routed.shm"][place].view(torch.uint8).flatten()
    tensor[tensor.numel() // 2] ^= 1
    found, expected = contents(run, "mat.routed.shm")
    wrong = [name for name in found if found[name] != expected[name]]
    assert len(wrong) == 1
    assert wrong[0].startswith("model.language_model.layers.2.mlp.experts.") or wrong[0] == place


def test_releasing_drops_every_reference(checkpoint: Checkpoint, realised: Any) -> None:
    run = realised(parsed(document(checkpoint)))
    memory = run.memories["mat.routed.ram-stage"]
    with pytest.raises(RangeInUse):
        run.ranges.free(memory)
    run.release()
    assert memory.freed


def test_the_state_lies_in_the_planned_range_and_nowhere_else(checkpoint: Checkpoint, realised: Any) -> None:
    plan = parsed(document(checkpoint))
    run = realised(plan)
    memory = run.memories["mat.runtime.shm"]
    run.adapter.prefill(Qwen35Moe.reference(plan, checkpoint, None, []))
    for tensor in run.adapter.model.state.values():
        assert memory.contains(tensor.data_ptr())
    for layer in run.adapter.model.layers:
        mixer = layer.mixer
        held = [mixer.keys, mixer.values] if hasattr(mixer, "keys") else [mixer.conv, mixer.recurrent]
        assert all(memory.contains(tensor.data_ptr()) for tensor in held)
    assert (
        sum(place.bytes for place in run.adapter.layout("mat.runtime.shm").places)
        == run.plan.materializations["mat.runtime.shm"].expected_bytes
    )


class GraphStandIn:
    """In place of torch.cuda's graphs where there is no GPU: replaying runs the step again. Only the bookkeeping around
    a capture is exercised; that a capture is possible at all is for tests without values and for a GPU to show."""

    step: Any = None

    def replay(self) -> None:
        type(self).step()


def capture(monkeypatch: pytest.MonkeyPatch, run: Realised) -> DecodeGraph:
    """The block's step as a graph, with torch.cuda stood in for."""

    class Stream:
        def __init__(self, **_: Any) -> None: ...
        def wait_stream(self, _: Any) -> None: ...
        def synchronize(self) -> None: ...

    for name, stand_in in (
        ("Stream", Stream),
        ("current_stream", lambda _: Stream()),
        ("stream", lambda _: nullcontext()),
        ("CUDAGraph", GraphStandIn),
        ("graph", lambda _, **__: nullcontext()),
        ("synchronize", lambda _: None),
        ("empty_cache", lambda: None),
    ):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    io = {
        place.name: torch.full(place.shape, 7, dtype=TORCH_DTYPES[place.dtype])
        for place in layout.graph_io(run.adapter.shape).places
    }
    made = DecodeGraph(run.adapter.model, io)
    GraphStandIn.step = made._run
    return made


@pytest.mark.parametrize("start", [0, 1])
def test_a_replayed_step_is_the_eager_one(
    checkpoint: Checkpoint, realised: Any, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    plan = parsed(document(checkpoint, start_layer=start))
    fixture = Qwen35Moe.reference(plan, checkpoint, None, [])
    run = realised(plan)
    run.adapter._graph = capture(monkeypatch, run)
    assert all(tensor.abs().sum() == 0 for tensor in run.adapter.model.state.values())
    assert run.adapter.decode_modes() == ("eager", "cuda-graph")
    run.adapter.prefill(fixture)
    run.adapter.save_baseline()
    for mode in ("cuda-graph", "eager", "cuda-graph"):
        run.adapter.restore_baseline()
        step = run.adapter.decode(fixture, mode)
        assert torch.equal(step.input, fixture.tensors["decode.input"])
        assert torch.equal(step.output, fixture.tensors["decode.output"])
    run.adapter._graph = None
    GraphStandIn.step = None


# --- drafting and reading plans -----------------------------------------------------------------------------------


def test_a_draft_has_the_published_states_and_exact_bytes(checkpoint: Checkpoint) -> None:
    made = document(checkpoint)
    assert [unit["id"] for unit in made["logical_state_units"]] == [REST, ROUTED, MUTABLE, BASELINE]
    sizes = {part["representation"]: part["expected_bytes"] for part in made["materializations"]}
    assert sizes == {
        layout.HOST_BANKS: layout.routed_banks(TINY).bytes,
        layout.NATIVE: layout.non_routed(TINY).bytes,
        layout.SLOT_BANKS: layout.routed_banks(TINY).bytes,
        layout.RUNTIME: layout.runtime_state(TINY).bytes,
        layout.SNAPSHOT: layout.runtime_state(TINY).bytes,
    }


def test_a_draft_for_a_gpu_adds_the_graphs_own_buffers_as_optional(checkpoint: Checkpoint) -> None:
    made = document(checkpoint, "streamed", "cuda:0")
    optional = [part for part in made["materializations"] if part["requirement"] == "optional"]
    assert [(part["id"], part["expected_bytes"]) for part in optional] == [
        ("mat.graph-io.vram", 16 + 2 * 2 * TINY.hidden)
    ]
    streamed = {part["id"]: part["streamed_bytes"] for part in made["materializations"] if "streamed_bytes" in part}
    assert streamed.keys() == {"mat.routed.ram-stage", "mat.non-routed.ram-stage"}
    assert streamed["mat.routed.ram-stage"] == sum(
        entry.bytes
        for key, entry in checkpoint.tensors.items()
        if ".mlp.experts." in key and key.endswith(("weight", "weight_scale"))
    )


@pytest.mark.parametrize("shape", [TINY, MIDDLE, replace(TINY, end=1)])
def test_selections_match_the_keys_they_count(checkpoint: Checkpoint, shape: BlockShape) -> None:
    made = parsed(document(checkpoint, start_layer=shape.start, end_layer=shape.end))
    for unit in made.document.logical_state_units:
        if unit.selection is not None:
            keys = [key for key in checkpoint.tensors if unit.selection.matches(key)]
            assert (len(keys), keys_digest(keys)) == (unit.selection.count, unit.selection.keys_digest)


def test_layer_patterns_match_their_range_and_nothing_else() -> None:
    for start, stop in ((0, 1), (0, 19), (3, 9), (7, 40), (10, 11), (19, 21), (0, 100)):
        patterns = list(_numbers(range(start, stop)))
        matched = [number for number in range(130) if any(fnmatchcase(str(number), p) for p in patterns)]
        assert matched == list(range(start, stop)), patterns


def test_without_end_layer_a_draft_takes_what_the_checkpoint_holds(checkpoint: Checkpoint) -> None:
    assert document(checkpoint)["adapter"]["options"]["end_layer"] == 4


def test_the_published_plan_is_recognised_and_read(checkpoint: Checkpoint) -> None:
    plan = parse_plan(Qwen35Moe.published("r1-block-a"))
    assert Qwen35Moe.recognises(plan)
    assert not Qwen35Moe.recognises(parsed(document(checkpoint)))
    with pytest.raises(NotFound):
        Qwen35Moe.published("nothing")


def test_the_published_plan_on_a_tiny_checkpoint_is_refused_and_allocates_nothing(checkpoint: Checkpoint) -> None:
    plan = parse_plan(Qwen35Moe.published("r1-block-a"))
    with pytest.raises(CheckpointError, match="layers 0 to 19 of 4"):
        Qwen35Moe(PlanHandle(plan), checkpoint)


def change(made: dict[str, Any], materialization: str, **fields: Any) -> None:
    for part in made["materializations"]:
        if part["id"] == materialization:
            part.update(fields)


@pytest.mark.parametrize(
    ("break_it", "subject", "message"),
    [
        (lambda made: change(made, "mat.routed.shm", representation="bf16"), "mat.routed.shm", "no representation"),
        (lambda made: change(made, "mat.routed.shm", representation="bf16"), "execution", "slot-banks"),
        (
            lambda made: change(made, "mat.non-routed.shm", representation=layout.SLOT_BANKS),
            "mat.routed.shm",
            "this is another",
        ),
        (
            lambda made: made["materializations"].append(made["materializations"].pop(0)),
            "mat.routed.ram-stage",
            "before",
        ),
        (lambda made: change(made, "mat.routed.ram-stage", streamed_bytes=1), "mat.routed.ram-stage", "go together"),
        (
            lambda made: change(
                made, "mat.routed.ram-stage", representation=layout.RING, streamed_bytes=1, expected_bytes=4095
            ),
            "mat.routed.ram-stage",
            "smaller than a page",
        ),
        (
            lambda made: change(made, "mat.routed.ram-stage", logical_state_id=REST),
            "mat.routed.ram-stage",
            "holds none",
        ),
        (
            lambda made: change(made, "mat.routed.ram-stage", logical_state_id=MUTABLE),
            "mat.routed.ram-stage",
            "stages for nothing",
        ),
        (
            lambda made: made["logical_state_units"][1]["selection"].update(count=1),
            ROUTED,
            "selects 1",
        ),
        (
            lambda made: made.update(adapter_data={"allowed_tensor_keys": ["a"]}),
            "adapter_data",
            "allowed_tensor_keys",
        ),
    ],
)
def test_what_cannot_be_carried_out_is_said_with_its_subject(
    checkpoint: Checkpoint, break_it: Any, subject: str, message: str
) -> None:
    made = json.loads(json.dumps(document(checkpoint)))
    break_it(made)
    found = Qwen35Moe(PlanHandle(parsed(made)), checkpoint).violations()
    assert [text for part, text in found if part == subject and message in text], found


def test_options_are_checked(checkpoint: Checkpoint) -> None:
    with pytest.raises(TallyError, match="no option 'windows'"):
        document(checkpoint, windows=1)
    with pytest.raises(TallyError, match="too small"):
        document(checkpoint, pages=0)
    with pytest.raises(TallyError, match="not an integer"):
        document(checkpoint, pages=1.5)  # type: ignore[arg-type]
    with pytest.raises(TallyError, match="not an integer"):
        document(checkpoint, pages=True)
    with pytest.raises(CheckpointError, match="layers 0 to 5 of 4"):
        document(checkpoint, end_layer=5)


# --- checkpoints and prompts --------------------------------------------------------------------------------------


def test_other_checkpoints_are_not_supported(checkpoint: Checkpoint) -> None:
    assert Qwen35Moe.unsupported(checkpoint) is None
    other = replace_config(checkpoint, {"model_type": "llama"})
    assert "llama" in (Qwen35Moe.unsupported(other) or "")
    bare = replace(checkpoint, tensors={key: e for key, e in checkpoint.tensors.items() if "experts" not in key})
    assert "NVFP4" in (Qwen35Moe.unsupported(bare) or "")


def replace_config(checkpoint: Checkpoint, config: dict[str, Any]) -> Checkpoint:
    return replace(checkpoint, config=config)


def test_a_tensor_of_another_shape_is_named(checkpoint: Checkpoint) -> None:
    key = "model.language_model.layers.2.mlp.experts.5.up_proj.weight"
    tensors = dict(checkpoint.tensors)
    tensors[key] = tensors[key]._replace(shape=(1, 1024))
    plan = parsed(document(checkpoint))
    found = Qwen35Moe(PlanHandle(plan), replace(checkpoint, tensors=tensors)).violations()
    assert [text for _, text in found if key in text and "[1, 1024]" in text]
    gates = [name for name in tensors if name.endswith(".A_log")]
    tensors[gates[0]] = tensors[gates[0]]._replace(dtype="F32", shape=(1,))
    tensors[gates[1]] = tensors[gates[1]]._replace(dtype="F16")
    found = Qwen35Moe(PlanHandle(plan), replace(checkpoint, tensors=tensors)).violations()
    assert all(any(gate in text for _, text in found) for gate in gates[:2])
    del tensors[key]
    found = Qwen35Moe(PlanHandle(plan), replace(checkpoint, tensors=tensors)).violations()
    assert [text for _, text in found if key in text and "not in the checkpoint" in text]


def test_another_models_tensors_are_counted_and_not_all_named(checkpoint: Checkpoint) -> None:
    plan = parsed(document(checkpoint))
    found = Qwen35Moe(PlanHandle(plan), replace(checkpoint, tensors={})).violations()
    named = [text for subject, text in found if subject == "checkpoint"]
    assert len(named) == 11
    assert "more tensors" in named[-1]


def test_prompts_are_checked(checkpoint: Checkpoint) -> None:
    plan = parsed(document(checkpoint))
    with pytest.raises(TallyError, match="outside the vocabulary"):
        Qwen35Moe.reference(plan, checkpoint, None, [TINY.vocabulary])
    with pytest.raises(TallyError, match="do not fit"):
        Qwen35Moe.reference(plan, checkpoint, None, [1] * 60)
    with pytest.raises(CheckpointError, match="tokenizer"):
        Qwen35Moe.reference(plan, checkpoint, "hello", [])


def test_references_are_reproducible(checkpoint: Checkpoint) -> None:
    plan = parsed(document(checkpoint))
    first, second = (Qwen35Moe.reference(plan, checkpoint, None, []) for _ in range(2))
    assert first.provenance == second.provenance
    for name, tensor in first.tensors.items():
        assert torch.equal(tensor, second.tensors[name]), name


def test_what_does_not_fit_or_was_not_realised_is_refused(checkpoint: Checkpoint, realised: Any) -> None:
    made = document(checkpoint)
    fixture = Qwen35Moe.reference(parsed(made), checkpoint, None, [])
    made["materializations"] = [m for m in made["materializations"] if m["role"] != "required_test_state"]
    run = realised(parsed(made))
    run.adapter.prefill(fixture)
    with pytest.raises(RealizationFailed, match="baseline"):
        run.adapter.save_baseline()
    with pytest.raises(RealizationFailed, match="cuda-graph"):
        run.adapter.decode(fixture, "cuda-graph")
    long = ReferenceFixture({**fixture.tensors, "decode.tokens": torch.zeros(64, dtype=torch.int64)}, {})
    with pytest.raises(RealizationFailed, match="do not fit"):
        run.adapter.decode(long)
    unready = Qwen35Moe(PlanHandle(parsed(document(checkpoint))), checkpoint)
    with pytest.raises(RealizationFailed, match="nothing is resident"):
        unready.activate("exec.block-a")
    with pytest.raises(RealizationFailed, match="not realised"):
        unready.prefill(fixture)


def test_synth_by_options(tmp_path: Path) -> None:
    written = Qwen35Moe.synth(tmp_path / "a", {"layers": 2, "experts": 8})
    held = open_checkpoint(str(written.directory))
    assert held.config["text_config"]["num_experts"] == 8
    assert Qwen35Moe.unsupported(held) is None
    with pytest.raises(TallyError, match="no option 'depth'"):
        Qwen35Moe.synth(tmp_path / "b", {"depth": 2})
    with pytest.raises(TallyError, match="whole numbers"):
        Qwen35Moe.synth(tmp_path / "b", {"layers": "many"})
    with pytest.raises(TallyError, match="neither true nor false"):
        Qwen35Moe.synth(tmp_path / "b", {"published": "perhaps"})
    assert not (tmp_path / "b").exists()


def test_warming_up_leaves_nothing_behind() -> None:
    gc.collect()
    before = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
    Qwen35Moe.warm_up("cpu")
    gc.collect()
    assert sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()) <= before
