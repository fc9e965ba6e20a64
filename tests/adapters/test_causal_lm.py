"""Any causal LM whose keys map one to one, realised into ranges: bit-equal to from_pretrained, and nothing left outside."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from adapters import transformers_model as lm
from adapters.causal_lm import CausalLM
from ledger.errors import CheckpointError, RealizationFailed, TallyError
from ledger.plan import Plan, freeze, parse_plan
from realizer import decode
from realizer.adapter import Claim, PlanHandle, ReferenceFixture
from realizer.checkpoint import open_checkpoint
from realizer.drafting import DraftOptions, draft_plan
from realizer.loader import Loader
from realizer.memory import MemoryRange, Ranges
from realizer.sample import ANSWER, PROMPT, TENSOR_BYTES, TENSORS, present, sample_directory
from tests.builders.checkpoints import tiny_model
from tests.builders.machine import cpu_machine

FAMILIES = ("llama", "qwen2", "qwen3", "gpt2")
TOKENS = [3, 1, 4, 15, 9, 26]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    base = tmp_path_factory.mktemp("models")
    return {
        (family, dtype): tiny_model(base / f"{family}-{dtype}", family, dtype=dtype)
        for family in FAMILIES
        for dtype in ("float32", "bfloat16")
    }


def drafted(directory: Path, staging: Any = "full", **options: Any) -> Plan:
    data = draft_plan(
        open_checkpoint(directory),
        CausalLM,
        cpu_machine(),
        DraftOptions(staging=staging, adapter_options=options, repetitions=2),
    )
    return parse_plan(data)


class Carried:
    """A plan carried out as the engine does it, without its events."""

    def __init__(self, plan: Plan, directory: Path, fixture: ReferenceFixture) -> None:
        self.plan, self.fixture, self.handle = plan, fixture, PlanHandle(plan)
        self.adapter = CausalLM(self.handle, open_checkpoint(directory))
        assert self.adapter.violations() == []
        self.ranges = Ranges()
        self.memory: dict[str, MemoryRange] = {}
        self.claims: dict[str, Claim] = {}
        loader = Loader(open_checkpoint(directory), threads=2)
        for planned in plan.document.materializations:
            layout = self.adapter.layout(planned.id)
            assert (layout.representation, layout.bytes) == (planned.representation, planned.expected_bytes)
            kind = plan.memory_resources[planned.memory_resource_id].kind
            device = "cuda:0" if kind == "accelerator-vram" else None
            pinned = planned.streamed_bytes is not None and torch.cuda.is_available()
            self.memory[planned.id] = self.ranges.allocate(
                kind, layout.length, owner=planned.id, device=device, pinned=pinned
            )
            self.claims[planned.id] = self.adapter.realize(planned.id, self.memory[planned.id], loader)
        for planned in plan.document.materializations:
            if planned.role == "staging":
                self.adapter.release(planned.id)
                gc.collect()
                self.ranges.free(self.memory[planned.id])
        self.device = self.adapter.activate("exec.decode")

    def decode(self) -> list[Any]:
        expected = self.plan.correctness
        bodies = [decode.prefill(self.adapter, self.fixture, "exec.decode", expected, self.handle)]
        self.adapter.save_baseline()
        for number in range(expected.repetitions):
            self.adapter.restore_baseline()
            bodies.append(decode.repetition(self.adapter, self.fixture, "exec.decode", expected, self.handle, number))
        return bodies


@contextmanager
def carried(
    directory: Path, staging: Any = "full", tokens: list[int] | None = None, **options: Any
) -> Iterator[Carried]:
    plan = drafted(directory, staging, **options)
    fixture = CausalLM.reference(plan, open_checkpoint(directory), None, tokens or TOKENS)
    run = Carried(freeze(plan), directory, fixture)
    ranges = run.ranges
    try:
        yield run
    finally:
        del run.adapter, run
        gc.collect()
        ranges.free_all()


# --- exactness ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_and_every_repetition_are_bit_equal_to_from_pretrained(
    models: dict[tuple[str, str], Path], family: str, dtype: str
) -> None:
    with carried(models[family, dtype], decode_steps=4, max_cache_length=32) as run:
        bodies = run.decode()
    assert [(body.phase, body.repetition) for body in bodies] == [
        ("prefill", None),
        ("repetition", 0),
        ("repetition", 1),
    ]
    for body in bodies:
        assert (body.input.exact.value, body.output.exact.value, body.output.max_absolute.value) == (1, 1, 0.0)
        assert (body.output.nan_count.value, body.output.inf_count.value, body.plan_lookups.value) == (0, 0, 0)
    assert len({body.output_digest.value for body in bodies[1:]}) == 1
    assert [body.tokens.value for body in bodies] == [1, 4, 4]


@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_through_a_ring_it_is_the_same(models: dict[tuple[str, str], Path], family: str) -> None:
    with carried(models[family, "bfloat16"], "streamed", window_bytes=8192, decode_steps=2) as run:
        ring = run.plan.materializations["mat.weights.stage"]
        assert ring.expected_bytes == 8192
        assert run.claims["mat.weights.resident"].streamed_bytes == ring.streamed_bytes
        assert ring.streamed_bytes == open_checkpoint(models[family, "bfloat16"]).tensor_bytes
        assert all(body.output.exact.value == 1 for body in run.decode())


def test_a_sharded_checkpoint_with_untied_head(tmp_path: Path) -> None:
    directory = tiny_model(tmp_path, "llama", tied=False, shard_bytes=100_000)
    assert len(open_checkpoint(directory).files) > 2
    with carried(directory, decode_steps=2) as run:
        assert all(body.output.exact.value == 1 for body in run.decode())


def test_another_model_with_the_same_headers_is_not_exact(tmp_path: Path, models: dict[tuple[str, str], Path]) -> None:
    """What the comparison is for: the fixture of one set of weights against the realised other."""
    other = tiny_model(tmp_path, "llama", seed=8)
    with carried(models["llama", "float32"], decode_steps=2) as run:
        run.fixture = CausalLM.reference(run.plan, open_checkpoint(other), None, TOKENS)
        bodies = run.decode()
    assert all(body.output.exact.value == 0 and body.output.max_absolute.value > 0 for body in bodies)


def test_a_decode_that_does_not_restore_its_baseline_is_not_repeatable(models: dict[tuple[str, str], Path]) -> None:
    with carried(models["llama", "float32"], decode_steps=3) as run:
        expected = run.plan.correctness
        run.decode()
        stale = decode.repetition(run.adapter, run.fixture, "exec.decode", expected, run.handle, 9)
        run.adapter.restore_baseline()
        restored = decode.repetition(run.adapter, run.fixture, "exec.decode", expected, run.handle, 10)
    assert (stale.output.exact.value, restored.output.exact.value) == (0, 1)


# --- memory -------------------------------------------------------------------------------------------------------


def storages() -> dict[int, int]:
    """Address -> bytes of every live tensor storage with memory."""
    found = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.device.type == "cpu":
            storage = thing.untyped_storage()
            if storage.nbytes():
                found[storage.data_ptr()] = storage.nbytes()
    return found


@pytest.mark.parametrize("staging", ["full", "streamed"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_nothing_lives_outside_the_ranges_and_every_place_is_a_live_tensor(
    models: dict[tuple[str, str], Path], family: str, staging: str
) -> None:
    gc.collect()
    before = storages()
    with carried(models[family, "float32"], staging, decode_steps=2) as run:
        run.decode()
        fixture = {tensor.untyped_storage().data_ptr() for tensor in run.fixture.tensors.values()}
        gc.collect()
        new = {
            address: size for address, size in storages().items() if address not in before and address not in fixture
        }
        expected = {}
        for planned in run.plan.document.materializations:
            if planned.role != "staging":
                for place in run.adapter.layout(planned.id).places:
                    expected[run.memory[planned.id].start + place.offset] = place.bytes
        assert new == expected


def test_ties_are_one_storage_and_the_head_has_none_of_its_own(models: dict[tuple[str, str], Path]) -> None:
    with carried(models["llama", "float32"]) as run:
        model = run.adapter.model
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert model.lm_head.weight.data_ptr() == run.memory["mat.weights.resident"].start
        assert "lm_head.weight" not in {place.name for place in run.adapter.layout("mat.weights.resident").places}


def test_rotary_buffers_lie_in_their_range_in_full_precision(models: dict[tuple[str, str], Path]) -> None:
    with carried(models["qwen3", "bfloat16"]) as run:
        buffers = dict(run.adapter.model.named_buffers())
        memory = run.memory["mat.buffers.resident"]
        plain = transformers.AutoModelForCausalLM.from_pretrained(models["qwen3", "bfloat16"], dtype=torch.bfloat16)
        for name, tensor in plain.named_buffers():
            assert buffers[name].dtype == torch.float32
            assert torch.equal(buffers[name], tensor)
            assert memory.start <= buffers[name].data_ptr() < memory.start + memory.length


def test_a_model_without_computed_buffers_plans_none(models: dict[tuple[str, str], Path]) -> None:
    plan = drafted(models["gpt2", "float32"])
    assert "state.buffers" not in plan.units
    assert "mat.buffers.resident" not in plan.materializations


# --- drafting -----------------------------------------------------------------------------------------------------


def test_the_draft_has_the_fixed_names_and_exact_bytes(models: dict[tuple[str, str], Path]) -> None:
    plan = drafted(models["llama", "bfloat16"], max_cache_length=40)
    found = {
        item.id: (item.logical_state_id, item.memory_resource_id, item.role, item.representation, item.expected_bytes)
        for item in plan.document.materializations
    }
    weights = open_checkpoint(models["llama", "bfloat16"]).tensor_bytes
    cache = 2 * (2 * 2 * 40 * 16 * 2 + 8)  # layers x (keys and values x heads x length x width x bf16, and the count)
    assert found == {
        "mat.weights.stage": ("state.weights", "node-a.ram", "staging", "checkpoint-native-host", weights),
        "mat.weights.resident": (
            "state.weights", "node-a.shm", "required_residency", "checkpoint-native-resident", weights,
        ),
        "mat.buffers.resident": ("state.buffers", "node-a.shm", "required_residency", "model-computed-buffers", 64),
        "mat.kv-cache": ("state.kv-cache", "node-a.shm", "mutable_authority", "transformers-static-cache", cache),
        "mat.replay-baseline": (
            "state.replay-baseline", "node-a.shm", "required_test_state", "transformers-static-cache-snapshot", cache,
        ),
    }  # fmt: skip
    assert plan.document.adapter is not None
    assert plan.document.adapter.options == {
        "max_cache_length": 40, "decode_steps": 8, "attention": "sdpa", "dtype": "BF16",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cache": 1}, "no option 'cache'"),
        ({"max_cache_length": "many"}, "not an integer"),
        ({"max_cache_length": 0}, "at least 1"),
        ({"decode_steps": 256}, "has no room"),
        ({"attention": "no-such-attention"}, "no-such-attention"),
        ({"decode_steps": 1.5}, "1.5, not an integer"),
        ({"decode_steps": True}, "True, not an integer"),
        ({"max_cache_length": [64]}, "not an integer"),
        ({"attention": 7}, "attention is 7, not a name"),
        ({"attention": {}}, "attention is {}, not a name"),
        ({"dtype": 0}, "dtype is 0, not a name"),
        ({"dtype": "BF16"}, "'BF16'; this checkpoint's tensors are F32"),
    ],
)
def test_options_that_cannot_be_are_refused(
    models: dict[tuple[str, str], Path], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(TallyError, match=says):
        drafted(models["llama", "float32"], **options)


def test_a_plan_whose_dtype_is_not_the_checkpoints_is_refused(models: dict[tuple[str, str], Path]) -> None:
    raw = json.loads(drafted(models["llama", "float32"]).data)
    raw["adapter"]["options"]["dtype"] = "BF16"
    plan = parse_plan(json.dumps(raw).encode())
    checkpoint = open_checkpoint(models["llama", "float32"])
    with pytest.raises(TallyError, match="this checkpoint's tensors are F32"):
        CausalLM(PlanHandle(plan), checkpoint)
    with pytest.raises(TallyError, match="this checkpoint's tensors are F32"):
        CausalLM.reference(plan, checkpoint, None, [1, 2])


def test_eager_attention_is_recorded_and_exact(models: dict[tuple[str, str], Path]) -> None:
    with carried(models["llama", "float32"], attention="eager", decode_steps=2) as run:
        assert run.fixture.provenance["attention"] == "eager"
        assert all(body.output.exact.value == 1 for body in run.decode())


# --- refusals -----------------------------------------------------------------------------------------------------


def edited(source: Path, directory: Path, change: Any, config: dict[str, Any] | None = None) -> Path:
    """The model with its tensors changed by `change(tensors)` and entries of its configuration replaced."""
    directory.mkdir(parents=True)
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((source / "config.json").read_text()) | (config or {})
    (directory / "config.json").write_text(json.dumps(settings))
    return directory


def test_fused_experts_are_refused_by_their_first_key(tmp_path: Path) -> None:
    why = CausalLM.unsupported(open_checkpoint(tiny_model(tmp_path, "mixtral")))
    assert why is not None
    assert "'model.layers.0.block_sparse_moe.experts.0.w1.weight' maps to no parameter of MixtralForCausalLM" in why


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.update({"model.extra.weight": torch.zeros(1)}), "'model.extra.weight' maps to no parameter"),
        (lambda t: t.pop("model.norm.weight"), "parameter 'model.norm.weight' of LlamaForCausalLM has no tensor"),
        (lambda t: t.update({"model.norm.weight": torch.ones(65)}), "is F32 [65], but parameter 'model.norm.weight'"),
        (lambda t: t.update({"model.norm.weight": torch.ones(64).half()}), "is F16 [64], but parameter"),
        (lambda t: t.update({"norm.weight": torch.ones(64)}), "both map to 'model.norm.weight'"),
    ],
)
def test_keys_that_do_not_map_one_to_one_are_named(
    tmp_path: Path, models: dict[tuple[str, str], Path], change: Any, says: str
) -> None:
    checkpoint = open_checkpoint(edited(models["llama", "float32"], tmp_path / "m", change))
    why = CausalLM.unsupported(checkpoint)
    assert why is not None
    assert says in why
    with pytest.raises(CheckpointError, match="another adapter"):
        draft_plan(checkpoint, CausalLM, cpu_machine())


@pytest.mark.parametrize(
    ("config", "says"),
    [({"model_type": "no_such_model"}, "model type 'no_such_model'"), ({"model_type": "vit"}, "builds no causal LM")],
)
def test_a_model_that_transformers_does_not_build(
    tmp_path: Path, models: dict[tuple[str, str], Path], config: dict[str, Any], says: str
) -> None:
    why = CausalLM.unsupported(
        open_checkpoint(edited(models["llama", "float32"], tmp_path / "m", lambda t: None, config))
    )
    assert why is not None
    assert says in why


def test_a_prefix_less_checkpoint_with_stored_masks_maps(tmp_path: Path, models: dict[tuple[str, str], Path]) -> None:
    """As the first GPT-2 checkpoints are: no `transformer.` prefix, and attention masks that the model ignores."""

    def strip(tensors: dict[str, torch.Tensor]) -> None:
        for key in list(tensors):
            tensors[key.removeprefix("transformer.")] = tensors.pop(key)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)

    directory = edited(models["gpt2", "float32"], tmp_path / "m", strip)
    with carried(directory, decode_steps=2) as run:
        selection = run.plan.units["state.weights"].selection
        assert selection is not None
        assert (selection.exclude, selection.count) == (["h.0.attn.bias"], 28)
        assert all(body.output.exact.value == 1 for body in run.decode())


@pytest.mark.parametrize(("factor", "count"), [(1.0, 20), (2.0, 21)])
def test_a_tie_stored_twice_is_one_tensor_only_when_its_bytes_are_equal(
    tmp_path: Path, models: dict[tuple[str, str], Path], factor: float, count: int
) -> None:
    def store(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * factor

    directory = edited(models["llama", "float32"], tmp_path / "m", store)
    with carried(directory, decode_steps=2) as run:
        assert run.claims["mat.weights.resident"].tensors == count
        assert all(body.output.exact.value == 1 for body in run.decode())


def test_a_buffer_that_nobody_computes_is_refused(models: dict[tuple[str, str], Path]) -> None:
    model = lm.build(open_checkpoint(models["gpt2", "float32"]))
    model.transformer.register_buffer("mystery", torch.zeros(3, device="meta"), persistent=False)
    with pytest.raises(lm.Unmapped, match=r"transformer\.mystery.*neither stored nor computed"):
        lm.computed_buffers(model)


def test_a_tensor_that_is_neither_parameter_nor_buffer_is_refused(models: dict[tuple[str, str], Path]) -> None:
    model = lm.build(open_checkpoint(models["gpt2", "float32"]))
    lm.check_plain(model)
    model.transformer.loose = torch.zeros(1)
    with pytest.raises(lm.Unmapped, match=r"transformer\.loose"):
        lm.check_plain(model)


# --- plans that do not fit ----------------------------------------------------------------------------------------


def changed(plan: Plan, change: Any) -> Plan:
    document = json.loads(plan.data)
    change(document)
    return parse_plan(json.dumps(document).encode())


def of(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [item for item in document["materializations"] if item["id"] == name]
    return found


@pytest.mark.parametrize(
    ("change", "subject", "says"),
    [
        (
            lambda d: of(d, "mat.kv-cache").update(representation="paged"),
            "mat.kv-cache",
            "makes 'transformers-static-cache' of it, not 'paged'",
        ),
        (lambda d: of(d, "mat.kv-cache").update(role="staging"), "mat.kv-cache", "no staging of state"),
        (lambda d: of(d, "mat.buffers.resident").update(logical_state_id="state.x"), "mat.buffers.resident", "state.x"),
        (lambda d: d["materializations"].remove(of(d, "mat.kv-cache")), "state.kv-cache", "no materialization"),
        (lambda d: d["materializations"].reverse(), "mat.weights.stage", "has to come before"),
        (lambda d: d["materializations"].append(of(d, "mat.kv-cache") | {"id": "two"}), "two", "keeps one"),
        (lambda d: d["execution"][0].update(id="exec.other"), "exec.other", "exec.decode"),
    ],
)
def test_a_plan_that_this_adapter_cannot_carry_out(
    models: dict[tuple[str, str], Path], change: Any, subject: str, says: str
) -> None:
    directory = models["llama", "float32"]
    plan = changed(drafted(directory), change)
    found = CausalLM(PlanHandle(plan), open_checkpoint(directory)).violations()
    assert [message for where, message in found if where == subject and says in message], found


def test_what_was_not_realised_is_named_at_activation(models: dict[tuple[str, str], Path]) -> None:
    directory = models["llama", "float32"]
    adapter = CausalLM(PlanHandle(drafted(directory)), open_checkpoint(directory))
    with pytest.raises(RealizationFailed, match=r"embed_tokens\.weight.*has no memory"):
        adapter.activate("exec.decode")
    with pytest.raises(TallyError, match="knows no materialization 'other'"):
        adapter.layout("other")


def test_weights_without_staging_are_read_where_they_stay(models: dict[tuple[str, str], Path]) -> None:
    directory = models["llama", "float32"]
    plan = changed(drafted(directory), lambda d: d["materializations"].remove(of(d, "mat.weights.stage")))
    fixture = CausalLM.reference(plan, open_checkpoint(directory), None, TOKENS)
    run = Carried(plan, directory, fixture)
    assert all(body.output.exact.value == 1 for body in run.decode())
    ranges = run.ranges
    del run
    gc.collect()
    ranges.free_all()


# --- reference and answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "says"),
    [([], "no prompt"), ([96], "token 96 is outside the vocabulary of 96"), ([1] * 249, "do not fit the cache")],
)
def test_prompts_that_cannot_be_run(models: dict[tuple[str, str], Path], tokens: list[int], says: str) -> None:
    directory = models["llama", "float32"]
    with pytest.raises(TallyError, match=says):
        CausalLM.reference(drafted(directory), open_checkpoint(directory), None, tokens)


@pytest.mark.parametrize("family", FAMILIES)  # of some, transformers makes an empty tokenizer from the config alone
def test_a_checkpoint_without_tokenizer_says_so(models: dict[tuple[str, str], Path], family: str) -> None:
    with pytest.raises(CheckpointError, match="there is no tokenizer in"):
        CausalLM.tokens(open_checkpoint(models[family, "float32"]), "hello")


def test_the_reference_says_how_it_was_made(models: dict[tuple[str, str], Path]) -> None:
    directory = models["qwen2", "bfloat16"]
    fixture = CausalLM.reference(drafted(directory, max_cache_length=24), open_checkpoint(directory), None, TOKENS)
    made = fixture.provenance
    assert (made["cache_class"], made["cache_length"], made["dtype"]) == ("StaticCache", "24", "BF16")
    assert (made["attention"], made["device"], made["transformers"]) == ("sdpa", "cpu", transformers.__version__)
    assert fixture.tensors["prefill.output"].shape == (6, 96)
    assert fixture.tensors["decode.output"].shape == (8, 96)
    first = int(fixture.tensors["prefill.output"][-1].argmax())
    assert fixture.tensors["decode.tokens"].tolist()[0] == first


def test_a_fixture_longer_than_the_cache_is_refused(models: dict[tuple[str, str], Path]) -> None:
    directory = models["llama", "float32"]
    with carried(directory, max_cache_length=16, decode_steps=2) as run:
        tokens = torch.zeros(20, dtype=torch.int64)
        longer = replace(run.fixture, tensors={**run.fixture.tensors, "prompt.tokens": tokens})
        with pytest.raises(RealizationFailed, match="22 tokens do not fit the cache of 16"):
            run.adapter.prefill(longer)


@pytest.mark.sample
@pytest.mark.parametrize("staging", ["full", "streamed"])
def test_the_sample_model_is_exact_and_answers(staging: str) -> None:
    directory = sample_directory()
    checkpoint = present(directory)
    if checkpoint is None:
        pytest.skip(f"the sample model is not in {directory}: `make sample` fetches it")
    assert (len(checkpoint.tensors), checkpoint.tensor_bytes) == (TENSORS, TENSOR_BYTES)
    tokens = CausalLM.tokens(checkpoint, PROMPT)
    with carried(directory, staging, tokens=tokens, decode_steps=2, max_cache_length=64) as run:
        assert all(body.output.exact.value == 1 for body in run.decode())
        assert run.adapter.answer(PROMPT, 2).startswith(ANSWER)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
@pytest.mark.parametrize("staging", ["full", "streamed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_gpu_every_tensor_lies_there_and_decode_is_exact(
    models: dict[tuple[str, str], Path], family: str, staging: Any
) -> None:
    from realizer.environment import observe_environment

    directory = models[family, "bfloat16"]
    options = DraftOptions(device="cuda:0", staging=staging, adapter_options={"decode_steps": 4}, repetitions=2)
    plan = freeze(parse_plan(draft_plan(open_checkpoint(directory), CausalLM, observe_environment(), options)))
    fixture = CausalLM.reference(plan, open_checkpoint(directory), None, TOKENS)
    assert fixture.provenance["device"] == "cuda:0"
    run = Carried(plan, directory, fixture)
    assert run.device == torch.device("cuda", 0)
    assert {tensor.device for tensor in run.adapter.model.state_dict().values()} == {run.device}
    assert all(body.output.exact.value == 1 for body in run.decode())
    ranges = run.ranges
    del run
    gc.collect()
    ranges.free_all()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_warm_up_runs_one_block_and_leaves_nothing(family: str, tmp_path: Path) -> None:
    model = lm.build(open_checkpoint(tiny_model(tmp_path / "model", family)))
    before = storages()
    lm.exercise(model, 32, torch.device("cpu"))
    assert storages() == before
    assert all(parameter.is_meta for parameter in model.parameters())
    assert model.config.num_hidden_layers == 2


def test_weights_at_odd_addresses_get_storages_as_the_allocator_aligns_them() -> None:
    """A mapped file's tensors lie wherever its header ends; matrix kernels add in another order at odd addresses."""
    linear = torch.nn.Linear(8, 8, bias=False)
    tied = torch.nn.Linear(8, 8, bias=False)
    block = torch.empty(4096, dtype=torch.uint8)
    odd = block[-block.data_ptr() % 64 + 8 :][: 8 * 8 * 4].view(torch.float32).view(8, 8)
    odd.copy_(linear.weight.data)
    linear.weight.data = odd
    tied.weight = linear.weight
    model = torch.nn.Sequential(linear, tied)
    assert model[0].weight.data_ptr() % 64 == 8
    lm.align(model)
    assert model[0].weight.data_ptr() % 64 == 0
    assert model[1].weight is model[0].weight
    assert torch.equal(model[0].weight.data, odd)
