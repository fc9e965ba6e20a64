"""The probes: what the operating system and the interpreter show of memory and state. They ask nobody else.

No adapter is asked, and nothing of the plan is repeated as if it had been seen: a Memory Resource is named by what kind
of mapping lies at the address, a representation by the live tensors found there. What cannot be read is unavailable,
with the reason.
"""

from __future__ import annotations

import gc
import os
import sys
import weakref
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ledger.bodies import Census, MaterializationObserved, MemorySampled, ReclamationObserved
from ledger.measurement import Measurement, Measurements, measured, unavailable
from ledger.plan import Materialization
from realizer import accelerator, census, machine_memory, process_tree
from realizer.adapter import Layout
from realizer.held_pages import HeldPages, HeldPagesWatch
from realizer.memory import (
    ACCELERATOR_VRAM,
    SHARED_MEMORY,
    SYSTEM_RAM,
    MemoryRange,
    Ranges,
    return_freed_heap,
)
from realizer.procfs import ProcFS, Unreadable, printable

if TYPE_CHECKING:
    import torch

KIND_OF_KEY = {"ram": SYSTEM_RAM, "shm": SHARED_MEMORY, "vram": ACCELERATOR_VRAM}
"""Kind of the Memory Resource that `environment.observed` gives that key, or a key with that ending."""
RECLAMATION_CLASSES = (
    "rss_anon", "rss_shmem", "vm_swap", "hugetlb", "new_file_mappings", "new_tmpfs_files", "vm_rss", "rss_file",
    "tree_sum",
)  # fmt: skip


class Probes:
    """One run's probes. `resources` maps an observed key ("ram", "shm", "cuda:0.vram") or kind to a plan's resource id.

    `private` keeps folders of mapped files out of what is recorded. `proc` can be another view of /proc.

    What a sample costs: a few milliseconds for /proc, and the census, which grows with the objects that the interpreter
    holds (about 0.2 microseconds each) and with the tensors (about 10). Page tables are walked (smaps) only when a file
    is mapped that was not there at the baseline, when a range of shared memory has pages, or when the tree has more than
    one process.
    """

    def __init__(
        self,
        ranges: Ranges,
        checkpoint_files: Sequence[Path],
        resources: Mapping[str, str] | None = None,
        *,
        private: bool = False,
        proc: ProcFS | None = None,
    ) -> None:
        self.ranges = ranges
        self.resources = dict(resources or {})
        self.private = private
        self.proc = proc or ProcFS()
        self._pid = os.getpid()
        self._files = HeldPagesWatch(self.proc, ranges, [Path(path).resolve() for path in checkpoint_files])
        self._book = census.StorageBook()
        self._owners: weakref.WeakKeyDictionary[MemoryRange, list[census.Remembered]] = weakref.WeakKeyDictionary()
        self._outside = process_tree.OutsideShare()
        self._no_baseline: str | None = "no baseline was taken"

    # --- samples --------------------------------------------------------------------------------------------------

    def baseline(self) -> MemorySampled:
        """What is there before anything is materialized, remembered as the measure of what is new.

        From here on orphaned descendants come to this process, so that none leaves the tree.
        """
        process_tree.adopt_orphans(True)
        weakref.finalize(self, process_tree.adopt_orphans, False)
        gc.collect()
        self._book.remember_baseline()
        self._outside = process_tree.outside_share(
            self.proc, process_tree.figures(self.proc, self._pid, reset_peak=False)
        )
        try:
            self._files.baseline(process_tree.members(self.proc, self._pid))
            self._no_baseline = None
        except Unreadable as error:
            self._no_baseline = f"no baseline: {error.message}"
        return self.sample("baseline")

    def close(self) -> None:
        """Leave the process as it was found."""
        process_tree.adopt_orphans(False)

    def evidence(self, role: str, tensors: Sequence[torch.Tensor]) -> None:
        """Name tensors that are kept on purpose, to compare with: the census reports them by their role."""
        self._book.add_evidence(role, tensors)

    def sample(self, label: str) -> MemorySampled:
        """The memory of tree, machine, cgroup and accelerators, and the census, now; peaks count anew from here."""
        return self._sample(label, self._census(), reset_peak=True)

    def _sample(self, label: str, taken: Census | None, *, reset_peak: bool) -> MemorySampled:
        return_freed_heap()
        tree = process_tree.figures(self.proc, self._pid, reset_peak=reset_peak)
        held = self._held(tree.pids)
        process: Measurements = {**tree.sums, **process_tree.swaps(self.proc)}
        process["new_file_mappings"] = held.new_file_mappings
        process["checkpoint_mappings"] = held.checkpoint_mappings
        process["new_tmpfs_files"] = held.new_tmpfs_files
        process["tree_sum"] = self._tree_sum(tree, held.unaccounted)
        process["processes"] = measured(len(tree.pids), "processes", "members of the tree")
        names = held.mapped_files
        return MemorySampled(
            label=label,
            process=process,
            host=machine_memory.host(self.proc),
            cgroup=machine_memory.cgroup(self.proc, tree.pids),
            cuda=accelerator.memory(tree.pids, self.ranges, reset_peak=reset_peak),
            census=taken,
            mapped_files=[name.rsplit("/", 1)[-1] for name in names] if self.private else list(names),
        )

    def _held(self, pids: Sequence[int]) -> HeldPages:
        if self._no_baseline is None:
            return self._files.look(pids)
        missing = unavailable("bytes", "files held since the baseline", self._no_baseline)
        return HeldPages(missing, missing, missing, missing, ())

    def _tree_sum(self, tree: process_tree.TreeFigures, unaccounted: Measurement) -> Measurement:
        """RssAnon + RssShmem + VmSwap + HugetlbPages + files held beyond those, each page once."""
        anonymous, shared = process_tree.distinct_pages(self.proc, tree, self._outside)
        parts = [anonymous, shared, tree.sums["vm_swap"], tree.sums["hugetlb"], unaccounted]
        method = "RssAnon + RssShmem + VmSwap + HugetlbPages of the tree + files held new since the baseline, once each"
        missing = next((part for part in parts if not part.known), None)
        if missing is not None:
            return unavailable("bytes", method, f"{missing.method}: {missing.detail}")
        total = sum(part.value for part in parts if isinstance(part.value, int))
        return measured(total, "bytes", method, detail=anonymous.detail)

    def _census(self) -> Census | None:
        """The tensor census; None in a process that never imported torch and so has no tensors."""
        return census.take(self.ranges, self._book) if "torch" in sys.modules else None

    # --- one materialization --------------------------------------------------------------------------------------

    def observe(self, materialization: Materialization, layout: Layout, memory: MemoryRange) -> MaterializationObserved:
        """What lies in the range now, as found: live storages and tensors, their form, and on which kind of memory.

        The representation's name is given only when every tensor of the layout is found alive at its address, with its
        dtype and shape, and nothing lives there besides. The storages are remembered as the range's owners.
        """
        found = [] if memory.freed else census.scan(self.ranges).within(memory)
        if not memory.freed:
            self._remember_owners(memory)
        occupied = census.spans(memory, found)
        method = "live storages by address in the range"
        tensors = {(live.start, live.extent) for live in found if live.dtype}
        storages = {live.storage_start for live in found}
        return MaterializationObserved(
            materialization_id=materialization.id,
            logical_state_id=materialization.logical_state_id,
            memory_resource_id=self._resource(memory, [live.start for live in found]),
            representation=self._representation(layout, memory, found, census.total(occupied)),
            bytes=measured(census.total(occupied), "bytes", method),
            storages=measured(len(storages), "storages", method),
            tensors=measured(len(tensors), "tensors", method),
            live=measured(int(bool(occupied)), "flag", method),
            ranges=[] if memory.freed else [memory.address_range()],
        )

    def _representation(
        self, layout: Layout, memory: MemoryRange, found: Sequence[census.LiveTensor], occupied: int
    ) -> Measurement:
        method = "dtype, shape and address of every live tensor in the range against the representation's layout"
        matched, missing = census.match(layout, memory, found)
        if missing is None and occupied == layout.bytes:
            return measured(layout.representation, None, method)
        seen = f"unrecognised: {matched} of {len(layout.places)} places found"
        if missing is not None:
            first = f"first missing: {missing.name}, {missing.dtype} {list(missing.shape)} at {missing.offset}"
            return measured(seen, None, method, detail=first)
        return measured(seen, None, method, detail=f"{occupied} bytes live where {layout.bytes} are laid out")

    def _resource(self, memory: MemoryRange, addresses: Sequence[int]) -> Measurement:
        """The plan's id of the Memory Resource that the live tensors lie on, else the name of what was found."""
        try:
            keys, method = self._keys(memory, addresses or ([] if memory.freed else [memory.start]))
        except Unreadable as error:
            return unavailable(None, "kind of mapping at the tensors' addresses", error.message)
        if len(keys) != 1:
            return measured(" and ".join(sorted(keys)) or "nowhere", None, method)
        (key,) = keys
        named = self.resources.get(key) or self.resources.get(KIND_OF_KEY.get(key.partition(".")[2] or key, ""))
        return measured(named or f"unplanned:{key}", None, method, detail=f"found on {key}")

    def _keys(self, memory: MemoryRange, addresses: Sequence[int]) -> tuple[set[str], str]:
        """Keys of `environment.observed` for where the addresses lie; mappings of other kinds by what they are."""
        if memory.space != "host":
            return {f"{memory.space}.vram"} if addresses else set(), "device of the live tensors"
        entries = self.proc.maps(self._pid)
        starts = [entry.start for entry in entries]
        keys = set()
        for address in addresses:
            place = bisect_right(starts, address) - 1
            if place < 0 or address >= entries[place].end:
                raise Unreadable(f"no mapping in maps holds address {address:#x}")
            entry = entries[place]
            if entry.inode == 0 and not entry.shared:
                keys.add("ram")
            elif entry.path.startswith(("/memfd:", "/dev/zero", "/SYSV", "/dev/shm/")):
                keys.add("shm" if entry.shared else "private mapping of shared memory")
            else:
                keys.add(f"file mapping of {printable(entry.path.rsplit('/', 1)[-1])}")
        return keys, "kind of the mappings in /proc/self/maps at the live tensors' addresses"

    def compute_unit(
        self, materialization_ids: Sequence[str], device: torch.device, bindings: Mapping[str, str]
    ) -> Measurement:
        """The plan's id of the Compute Unit whose memory the live tensors of these materializations lie in.

        `bindings` maps plan ids to observed keys; `device` is what the adapter says, and only compared.
        """
        method = "device of the live tensors of the bound state"
        found = census.scan(self.ranges)
        spaces = {
            live.space for memory in self.ranges if memory.owner in materialization_ids for live in found.within(memory)
        }
        if not spaces:
            return unavailable(None, method, "no live tensor of the bound state was found")
        keys = {"cpu" if space == "host" else space for space in spaces}
        said = "cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}"
        detail = None if keys == {said} else f"the adapter says {said}"
        units = sorted(planned for planned, key in bindings.items() if key in keys)
        if len(keys) == 1 and len(units) == 1:
            return measured(units[0], None, method, detail=detail)
        return measured(" and ".join(units) or "unplanned:" + " and ".join(sorted(keys)), None, method, detail=detail)

    # --- owners and release ---------------------------------------------------------------------------------------

    def _remember_owners(self, memory: MemoryRange) -> None:
        known = self._owners.setdefault(memory, [])
        seen = {(held.start, held.bytes) for held in known if held.alive}
        known += [held for held in census.owners_in(memory) if (held.start, held.bytes) not in seen]

    def owners(self, memory: MemoryRange) -> tuple[Measurement, Measurement]:
        """Owners of the range: how many were remembered when it was observed, and how many live now.

        An owner is a live storage (host), a live view (device), or whatever else keeps the range from being freed.
        """
        method = "storages (on a device: views) in the range, remembered weakly when it was observed"
        known = self._owners.get(memory, [])
        total = (
            measured(len(known), "owners", method)
            if memory in self._owners
            else unavailable("owners", method, "the range was never observed")
        )
        alive = {(held.start, held.bytes) for held in known if held.alive}
        detail = None
        if not memory.freed:
            alive |= {(held.start, held.bytes) for held in census.owners_in(memory)}
            if not alive and memory.in_use:
                return total, measured(1, "owners", method, detail="a buffer, array or C++ object holds the range")
        return total, measured(len(alive), "owners", method, detail=detail)

    def live_bytes(self, memory: MemoryRange) -> Measurement:
        """Bytes of live storages in the range now."""
        method = "live storages by address in the range"
        if memory.freed:
            kept = [held for held in self._owners.get(memory, []) if held.alive]
            return measured(sum(held.bytes for held in kept), "bytes", f"{method}; the range is freed")
        found = census.scan(self.ranges).within(memory)
        return measured(census.total(census.spans(memory, found)), "bytes", method)

    def reclamation(
        self,
        materialization_id: str,
        phase: Literal["after-release", "after-decode"],
        memory: MemoryRange,
        before: MemorySampled,
        staging_bytes: int,
    ) -> ReclamationObserved:
        """What went back to the operating system since `before`, the sample just before the release."""
        now = self._sample(phase, None, reset_peak=False)
        total, alive = self.owners(memory)
        tree_before, tree_after = before.process["tree_sum"], now.process["tree_sum"]
        method = "(tree sum before the release - tree sum now) / staging bytes"
        if not isinstance(tree_before.value, int) or not isinstance(tree_after.value, int):
            ratio = unavailable("ratio", method, "a tree sum is not known")
        elif staging_bytes <= 0:
            ratio = unavailable("ratio", method, "no staging bytes are planned")
        else:
            ratio = measured((tree_before.value - tree_after.value) / staging_bytes, "ratio", method)
        return ReclamationObserved(
            materialization_id=materialization_id,
            phase=phase,
            owners_total=total,
            owners_alive=alive,
            region_mapped=memory.mapped(),
            tree_before=tree_before,
            tree_after=tree_after,
            ratio=ratio,
            classes_before={name: before.process[name] for name in RECLAMATION_CLASSES if name in before.process},
            classes_after={name: now.process[name] for name in RECLAMATION_CLASSES},
            system=now.host,
        )
