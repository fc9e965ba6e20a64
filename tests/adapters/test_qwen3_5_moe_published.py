"""The published plan comes out byte for byte from layout facts, and the layouts have the published sums."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.qwen3_5_moe import layout
from adapters.qwen3_5_moe.keys import disk_tensors, layer_tensors, selected_keys, shard_of
from adapters.qwen3_5_moe.published import PLANS, published
from adapters.qwen3_5_moe.shape import PUBLISHED, TINY, BlockShape
from ledger.errors import CheckpointError, NotFound

REFERENCE = Path(__file__).parents[2] / "../shared/reference/r1-frozen-plan.json"
FILE_SHA256 = "11bebfc891d078eafafeddc78a36bc7aba3943b97a849e02a72a480e55115062"
PLAN_DIGEST = "sha256:430f84e406f51d037ab8ae2844865ff4d6b60d17a1d43d54180d509682ca2281"


def test_the_published_plan_has_the_published_digests() -> None:
    plan = published("r1-block-a")
    assert hashlib.sha256(plan.data).hexdigest() == FILE_SHA256
    assert plan.computed_digest == plan.claimed_digest == PLAN_DIGEST
    assert plan.frozen


@pytest.mark.skipif(not REFERENCE.is_file(), reason="the published plan file is not at hand")
def test_the_published_plan_is_the_published_file() -> None:
    assert published("r1-block-a").data == REFERENCE.read_bytes()


def test_an_unknown_plan_name_lists_the_known() -> None:
    with pytest.raises(NotFound, match="r1-block-a"):
        published("r2")
    assert list(PLANS) == ["r1-block-a"]


def test_the_layouts_have_the_published_sums() -> None:
    banks, rest, state = layout.routed_banks(PUBLISHED), layout.non_routed(PUBLISHED), layout.runtime_state(PUBLISHED)
    assert (banks.bytes, len(banks.places)) == (8_636_596_224, 114)
    assert rest.bytes == 1_689_347_736
    assert state.bytes == layout.runtime_state(PUBLISHED, layout.SNAPSHOT).bytes == 32_718_848
    assert banks.bytes + rest.bytes + 2 * state.bytes == 10_391_381_656


def test_one_layers_parts_have_the_published_bytes() -> None:
    sums: dict[str, int] = {}
    for place in layout.non_routed(PUBLISHED).places:
        owner = ".".join(place.name.split(".")[:3]) if "attn" in place.name else place.name.split(".")[0]
        sums[owner] = sums.get(owner, 0) + place.bytes
    assert sums["layers.0.linear_attn"] == 33_939_976
    assert sums["layers.3.self_attn"] == 27_309_064
    assert sums["layers"] == 19 * 2_836_480
    assert sums["embed_tokens"] == 1_017_118_720


def test_the_disk_has_the_published_tensors_and_the_block_selects_its_share() -> None:
    assert sum(1 for _ in layer_tensors(PUBLISHED, 0)) == 3_103
    assert sum(1 for _ in layer_tensors(PUBLISHED, 3)) == 3_102
    keys = selected_keys(PUBLISHED)
    assert len(keys) == len(set(keys)) == 44_362
    sizes = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1}
    chosen, total = set(keys), 0
    for tensor in disk_tensors(PUBLISHED):
        if tensor.key in chosen:
            elements = 1
            for extent in tensor.shape:
                elements *= extent
            total += elements * sizes[tensor.dtype]
    assert total == 10_294_959_664


@pytest.mark.parametrize("shape", [PUBLISHED, TINY, replace(TINY, start=1, end=2), replace(TINY, end=1)])
def test_every_layout_place_is_made_of_selected_keys_and_leaves_out_only_what_no_layout_holds(
    shape: BlockShape,
) -> None:
    places = layout.routed_banks(shape).places + layout.non_routed(shape).places
    used = [key for place in places for key in place.sources]
    assert len(used) == len(set(used))
    left_out = set(selected_keys(shape)) - set(used)
    assert left_out == {key for key in selected_keys(shape) if "shared_expert." in key and key.endswith("input_scale")}
    assert set(used) <= set(selected_keys(shape))


def test_a_copied_place_has_the_bytes_of_its_sources() -> None:
    bits = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1}
    disk = {}
    for tensor in disk_tensors(TINY):
        elements = 1
        for extent in tensor.shape:
            elements *= extent
        disk[tensor.key] = elements * bits[tensor.dtype]
    copied = [p for p in layout.routed_banks(TINY).places + layout.non_routed(TINY).places if not p.derived]
    assert copied
    for place in copied:
        assert place.bytes == sum(disk[key] for key in place.sources), place.name


def test_the_shard_split_is_the_published_one() -> None:
    at = "model.language_model.layers.16."
    assert [shard_of(PUBLISHED, key) for key in (f"{at}mlp.gate.weight", f"{at}mlp.shared_expert_gate.weight")] == [
        0,
        1,
    ]
    assert shard_of(PUBLISHED, f"{at}mlp.experts.138.up_proj.weight") == 0
    assert shard_of(PUBLISHED, f"{at}mlp.experts.139.up_proj.weight") == 1
    assert shard_of(PUBLISHED, "model.language_model.layers.9.input_layernorm.weight") == 0
    assert shard_of(PUBLISHED, "model.language_model.layers.17.linear_attn.A_log") == 1


@pytest.mark.parametrize("shape", [PUBLISHED, TINY, replace(TINY, start=1, end=3, pages=2)])
def test_config_round_trips_through_its_json(shape: BlockShape) -> None:
    read = BlockShape.from_config(
        shape.config(), start=shape.start, end=shape.end, pages=shape.pages, page_tokens=shape.page_tokens
    )
    assert read == shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "wrong kind"),
        ({"hidden_size": 65}, "multiple of 16"),
        ({"num_experts_per_tok": 17}, "top 17 of 16"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"layer_types": ["full_attention"] * 4}, "layer_types"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_theta"),
        ({"rope_parameters": [1]}, "no object"),
        ({"rope_parameters": {"rope_theta": 0}}, "rotary base 0"),
        ({"rms_norm_eps": float("nan")}, "epsilon nan"),
        ({"full_attention_interval": 0}, "full_attention_interval 0"),
        ({"num_key_value_heads": 0}, "kv_heads 0"),
        ({"num_hidden_layers": 10**12}, "model_layers 1000000000000|end 1000000000000"),
        ({"num_experts": -1}, "experts -1"),
        ({"head_dim": float("inf")}, "wrong kind"),
        ({"layer_types": 5}, "layer_types"),
    ],
)
def test_a_config_that_this_block_does_not_compute_is_refused(change: dict, message: str) -> None:
    config = TINY.config()
    config["text_config"].update(change)
    with pytest.raises(CheckpointError, match=message):
        BlockShape.from_config(config)


def test_another_model_is_refused() -> None:
    with pytest.raises(CheckpointError, match="llama"):
        BlockShape.from_config({"model_type": "llama"})
