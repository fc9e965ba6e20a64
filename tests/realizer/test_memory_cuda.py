"""Memory ranges, probes and discovery on a CUDA device; skipped with the reason where there is none."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.plan import Materialization
from realizer.adapter import pack
from realizer.environment import observe_environment
from realizer.memory import AllocationFailed, RangeInUse, Ranges
from realizer.probes import Probes
from tests.realizer.planted import MIB

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")

SIZE = 256 * MIB


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """A context, one allocation and one copy, so that what they take is there before anything is measured."""
    tensor = torch.ones(1024, device="cuda:0")
    torch.cuda.synchronize()
    assert tensor.cpu().sum().item() == 1024


@pytest.fixture
def ranges() -> Iterator[Ranges]:
    made = Ranges()
    yield made
    gc.collect()
    assert made.free_all() == []


def planned(representation: str = "native-device") -> Materialization:
    return Materialization(
        id="bank", logical_state_id="w", memory_resource_id="gpu0.vram", representation=representation,
        role="required_residency", persistence="persistent", requirement="required", expected_bytes=SIZE,
    )  # fmt: skip


def value(measurement: Any) -> Any:
    assert measurement.known, measurement
    return measurement.value


def test_pinned_staging_is_exactly_sized_and_goes_back_whole(ranges: Ranges) -> None:
    probes = Probes(ranges, [])
    probes.baseline()
    before = probes.sample("before")
    stage = ranges.allocate("system-ram", SIZE + 4096, owner="stage", pinned=True)
    assert stage.length == SIZE + 4096
    source = stage.tensor(torch.uint8, (SIZE,), 0).fill_(3)
    target = torch.empty(SIZE, dtype=torch.uint8, device="cuda:0")
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    assert source.is_pinned()
    assert int(target.sum(dtype=torch.int64).item()) == 3 * SIZE
    staged = probes.sample("staged")
    assert value(staged.cuda["pinned_ranges"]) == stage.length
    pool = value(staged.cuda["host_pool"]) - value(before.cuda["host_pool"])
    assert pool < MIB, "torch's own pinned pool took no part"
    assert staged.census is not None
    assert value(staged.census.by_owner["stage"]) == SIZE
    assert value(staged.census.unowned_device_bytes) == SIZE, "the target belongs to nobody"
    with pytest.raises(RangeInUse):
        ranges.free(stage)
    assert stage.pinned, "a refused free unregisters nothing"
    del source
    before_release = probes.sample("before-release")
    ranges.free(stage)
    found = probes.reclamation("stage", "after-release", stage, before_release, SIZE)
    assert value(found.region_mapped) == 0
    assert value(found.ratio) > 0.99
    assert value(probes.sample("after").cuda["pinned_ranges"]) == 0


def test_a_device_range_is_one_allocation_that_goes_back_to_the_driver(ranges: Ranges) -> None:
    torch.cuda.empty_cache()
    free_before = torch.cuda.mem_get_info(0)[0]
    bank = ranges.allocate("accelerator-vram", SIZE, owner="bank", device="cuda:0", tag="epoch-1")
    assert bank.space == "cuda:0"
    weight = bank.tensor(torch.bfloat16, (1024, 1024), 1024)
    weight.fill_(2)
    assert weight.data_ptr() == bank.start + 1024
    assert value(bank.read_tag()) == "epoch-1"
    assert value(bank.mapped()) == 1
    with pytest.raises(RangeInUse):
        ranges.free(bank)
    del weight
    ranges.free(bank)
    assert value(bank.mapped()) == 0
    assert abs(torch.cuda.mem_get_info(0)[0] - free_before) < 8 * MIB


def test_what_lies_on_the_device_is_observed_there(ranges: Ranges) -> None:
    layout = pack(
        "native-device", [("a", "BF16", (512, 512), ()), ("b", "F8_E4M3", (100, 3), ()), ("c", "F32", (), ())]
    )
    bank = ranges.allocate("accelerator-vram", layout.length, owner="bank", device="cuda:0")
    names = {"BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "F32": torch.float32}
    held = {place.name: bank.tensor(names[place.dtype], place.shape, place.offset) for place in layout.places}
    probes = Probes(ranges, [], {"cuda:0.vram": "gpu0.vram", "ram": "node-a.ram"})
    seen = probes.observe(planned(), layout, bank)
    assert value(seen.memory_resource_id) == "gpu0.vram"
    assert value(seen.representation) == "native-device"
    assert (value(seen.bytes), value(seen.tensors), value(seen.live)) == (layout.bytes, 3, 1)
    assert seen.ranges[0].space == "cuda:0"
    bindings = {"cpu0": "cpu", "gpu0": "cuda:0"}
    assert value(probes.compute_unit(["bank"], torch.device("cuda", 0), bindings)) == "gpu0"
    assert [value(count) for count in probes.owners(bank)] == [3, 3]
    held.pop("b")
    assert value(probes.owners(bank)[1]) == 2
    assert "first missing: b" in str(probes.observe(planned(), layout, bank).representation.detail)
    held.clear()


def test_a_leaked_pinned_buffer_is_seen_alive_and_dead(ranges: Ranges) -> None:
    probes = Probes(ranges, [])
    before = probes.baseline()
    leaked = torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)
    alive = probes.sample("alive")
    assert alive.census is not None
    assert value(alive.census.unowned_host_bytes) == SIZE
    assert value(alive.process["tree_sum"]) - value(before.process["tree_sum"]) > 0.9 * SIZE
    del leaked
    dead = probes.sample("dead")
    assert dead.census is not None
    assert value(dead.census.unowned_host_bytes) == 0
    assert value(dead.process["tree_sum"]) - value(before.process["tree_sum"]) > 0.9 * SIZE, "torch keeps the pages"
    assert value(dead.cuda["host_pool"]) - value(before.cuda["host_pool"]) >= SIZE


def test_the_devices_figures_are_recorded_by_name(ranges: Ranges) -> None:
    probes = Probes(ranges, [])
    probes.baseline()
    first = probes.sample("before").cuda
    assert set(first) >= {"cuda:0.allocated", "cuda:0.reserved", "cuda:0.peak", "cuda:0.process", "host_pool"}
    passing = torch.empty(SIZE, dtype=torch.uint8, device="cuda:0")
    del passing
    second = probes.sample("after").cuda
    assert value(second["cuda:0.peak"]) - value(first["cuda:0.allocated"]) == SIZE
    assert value(second["cuda:0.allocated"]) == value(first["cuda:0.allocated"])
    third = probes.sample("quiet").cuda
    assert value(third["cuda:0.peak"]) == value(first["cuda:0.allocated"]), "the peak counts anew from each sample"
    assert value(second["cuda:0.used"]) > SIZE
    process = second["cuda:0.process"]
    assert process.known or process.detail
    print(process)


def test_the_device_is_the_one_that_the_driver_shows() -> None:
    found = observe_environment()
    unit = next(unit for unit in found.compute_units if unit.key == "cuda:0")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    assert value(unit.device_uuid) in listed
    vram = next(resource for resource in found.memory_resources if resource.key == "cuda:0.vram")
    assert value(vram.capacity_bytes) > value(vram.available_bytes) > 0
    assert Path("/proc", str(os.getpid())).exists()


def test_more_than_the_device_has_is_refused_with_the_reason(ranges: Ranges) -> None:
    with pytest.raises(AllocationFailed, match="cuda:0 for bank"):
        ranges.allocate("accelerator-vram", 1 << 50, owner="bank", device="cuda:0")
    with pytest.raises(AllocationFailed):
        ranges.allocate("accelerator-vram", 4096, owner="bank", device="cuda:99")
