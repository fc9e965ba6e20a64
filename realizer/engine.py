"""The one lifecycle: a frozen plan carried out step by step, each step an event that is durable before the next.

    with realize(request, sink=sink, put_blob=put_blob) as run:
        run.judgement          # what the recorded events say, laid against the plan
        run.model              # the live model that they speak of

The engine asks the adapter to act and the probes to look, and never takes the one's word for the other's. The pure rule
that allows a release here is the one by which the judge checks it afterwards.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from ledger.bodies import (
    AddressRange,
    AuthorityEstablished,
    Body,
    BoundState,
    EnvironmentObserved,
    ExecutionActivated,
    FreezingReference,
    MaterializationFailed,
    MaterializationObserved,
    MaterializationRealized,
    MaterializationReleased,
    MaterializationStarted,
    MemorySampled,
    PlanAccepted,
    PlanReference,
    PlanRejectedEvent,
    ReferenceBound,
    ReleaseAuthorized,
    ReleaseRefused,
    RunClosed,
    RunOpened,
    Violation,
)
from ledger.canonical import sha256_digest
from ledger.counting import counted
from ledger.errors import CheckpointError, PlanRejected, RealizationFailed, TallyError
from ledger.events import Event, read_event
from ledger.fold import fold
from ledger.measurement import Measurement, claimed, measured, unavailable
from ledger.plan import Execution, Materialization, Plan
from ledger.reconcile import Judgement, judge
from ledger.reconcile.staging import qualifying_ids
from ledger.recording import Recorded
from ledger.run_state import RunState
from realizer import answers, decode, device_copies, environment
from realizer.adapter import Adapter, Layout, PlanHandle, ReferenceFixture
from realizer.checkpoint import Checkpoint, open_checkpoint
from realizer.content import content_of
from realizer.loader import Loader
from realizer.memory import MemoryRange, RangeInUse, Ranges
from realizer.probes import Probes
from realizer.validate import Validation, remedy, validate
from realizer.watch import CheckpointWatch

Sink = Callable[[Body], Recorded]
Progress = Callable[[str, int, int], None]
Found = TypeVar("Found")
"""(what, bytes done, bytes in all)."""


def _no_progress(what: str, done: int, total: int) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class Request:
    """What somebody asks to have carried out.

    `checkpoint` is a directory or a hub repository, null for the one that the plan names; `adapter` null means the one
    the plan names. `frozen` cites the plan's `plan.frozen` event where the ledger has one.
    """

    plan: Plan
    checkpoint: str | None = None
    reference: Path | None = None
    adapter: type[Adapter] | None = None
    frozen: FreezingReference | None = None
    labels: dict[str, str] = field(default_factory=dict)
    challenge: str | None = None
    private: bool = False
    verify_content: bool = False


class LiveRun:
    """A realization that was carried out and closed; its memory stays until the `with` block ends."""

    def __init__(self, plan: Plan, adapter: Adapter, state: RunState) -> None:
        self.plan = plan
        self.state = state
        self._adapter: Adapter | None = adapter

    @property
    def adapter(self) -> Adapter:
        """The adapter that holds the live model. Raises RealizationFailed once the `with` block has ended."""
        if self._adapter is None:
            raise RealizationFailed("the model is gone: its memory was freed", "use it inside the `with` block")
        return self._adapter

    def end(self) -> None:
        """Let go of the adapter, so that its ranges can be freed while somebody still holds this object."""
        self._adapter = None

    @property
    def model(self) -> Any:
        """The live model, on the very memory that the events speak of."""
        return self.adapter.model

    @property
    def run_id(self) -> str:
        """The run's id, as every event of it bears."""
        return _present(self.state.run_id)

    @property
    def judgement(self) -> Judgement:
        """The recorded events laid against the plan."""
        return judge(self.plan, self.state)


@contextmanager
def realize(
    request: Request,
    *,
    sink: Sink,
    put_blob: Callable[[bytes, str], str],
    progress: Progress = _no_progress,
) -> Iterator[LiveRun]:
    """Carry the plan out, close the run, and hand out the live model.

    `sink` makes each body an event and returns only when it is durable. Whatever happens, the run is closed with what
    was done recorded: PlanRejected (exit 3) when anything speaks against the plan, before a byte is allocated;
    RealizationFailed or the adapter's own error when it stopped; KeyboardInterrupt closes it as aborted. On leaving the
    block every range is freed.
    """
    state: RunState | None = None

    def emit(body: Body) -> Event:
        nonlocal state
        event = read_event(sink(body).envelope)
        state = fold([event], state)
        return event

    put_blob(request.plan.data, "application/json")
    checkpoint: Checkpoint | None = None
    problem: TallyError | None = None
    try:
        checkpoint = open_checkpoint(
            request.checkpoint or request.plan.document.model.repository, request.plan.document.model.revision
        )
    except CheckpointError as error:
        problem = error
    opened = _opened(request, checkpoint, progress)
    ranges = Ranges()
    watch: CheckpointWatch | None = None
    realization: _Realization | None = None
    try:
        emit(opened)
        if checkpoint is None:
            raise problem or CheckpointError("no checkpoint was opened")
        handle = PlanHandle(request.plan)
        watch = CheckpointWatch([shard.path for shard in checkpoint.files])
        watch.arm()
        realization = _Realization(
            request, handle, checkpoint, emit, put_blob, progress, ranges, watch, lambda: _present(state)
        )
        adapter = realization.carry_out()
        emit(RunClosed(outcome="completed"))
    except PlanRejected as error:
        emit(RunClosed(outcome="rejected", error_type=type(error).__name__, message=error.message))
        raise
    except KeyboardInterrupt:
        emit(RunClosed(outcome="aborted", error_type="KeyboardInterrupt", message="interrupted by the operator"))
        raise
    except Exception as error:
        emit(RunClosed(outcome="failed", error_type=answers.raised_by(error), message=_one_line(error)))
        raise
    except BaseException as error:
        # An adapter, or what it calls, gave up on the process (SystemExit, GeneratorExit, a cancellation): that must
        # neither leave the run open nor end as the command's own success.
        emit(RunClosed(outcome="failed", error_type=type(error).__name__, message=_one_line(error)))
        raise answers.gave_up((realization and realization.adapter) or request.adapter, error) from error
    finally:
        if watch is not None:
            watch.close()
    live = LiveRun(request.plan, adapter, _present(state))
    try:
        yield live
    finally:
        live.end()
        del adapter, realization
        gc.collect()
        for refusal in ranges.free_all():
            warnings.warn(f"{refusal}; it goes when its last holder does", ResourceWarning, stacklevel=2)


def _present(found: Found | None) -> Found:
    if found is None:
        raise RealizationFailed("the run has no events yet")
    return found


def _one_line(error: BaseException) -> str:
    """The message in one line; names of files that are no text are escaped, since an event holds text alone."""
    text = str(error).strip() or type(error).__name__
    return " ".join(text.split())[:500].encode("utf-8", "backslashreplace").decode("utf-8")


def _opened(request: Request, checkpoint: Checkpoint | None, progress: Progress) -> RunOpened:
    plan = request.plan
    facts = environment.process_facts(private=request.private)
    hashed = any(file.digest for file in plan.document.checkpoint.files) if plan.document.checkpoint else False
    return RunOpened(
        purpose="realization",
        plan=PlanReference(
            claimed_digest=plan.claimed_digest,
            computed_digest=plan.computed_digest,
            blob_digest=plan.blob_digest,
            plan_schema=plan.schema,
        ),
        frozen=request.frozen,
        adapter=environment.adapter_identity(plan, request.adapter),
        software=environment.software_identity(),
        argv=facts["argv"],
        user=facts["user"],
        hostname=facts["hostname"],
        pid=facts["pid"],
        labels=request.labels,
        challenge=request.challenge,
        model=checkpoint.identity(private=request.private) if checkpoint else None,
        checkpoint_files=checkpoint.describe_files(hashed=hashed, progress=progress) if checkpoint else [],
    )


@dataclass
class _Realization:
    """One plan being carried out; `carry_out` is the lifecycle from top to bottom."""

    request: Request
    handle: PlanHandle
    checkpoint: Checkpoint
    emit: Callable[[Body], Event]
    put_blob: Callable[[bytes, str], str]
    progress: Progress
    ranges: Ranges
    watch: CheckpointWatch
    state: Callable[[], RunState]
    bindings: dict[str, str] = field(default_factory=dict)
    adapter: Adapter | None = None

    @property
    def plan(self) -> Plan:
        return self.request.plan

    def carry_out(self) -> Adapter:
        observed = environment.observe_environment(private=self.request.private)
        self.emit(observed)
        validation = self._validate(observed)
        self.adapter = adapter = _accepted(validation)
        self.bindings = validation.bindings
        self._warm_up(adapter)
        self.probes = Probes(
            self.ranges,
            [shard.path for shard in self.checkpoint.files],
            {key: planned for planned, key in self.bindings.items() if planned in self.plan.memory_resources},
            private=self.request.private,
        )
        with closing(self.probes):
            self._carry_out_observed(adapter)
        return adapter

    def _carry_out_observed(self, adapter: Adapter) -> None:
        """From the baseline to the closing sample."""
        self.emit(self.probes.baseline())
        fixture = decode.load_fixture(self.request.reference) if self.request.reference else None
        if fixture is not None:
            self.probes.evidence("reference", list(fixture.tensors.values()))
        loader = Loader(self.checkpoint, progress=self.progress, digests=self.request.verify_content)
        memories: dict[str, MemoryRange] = {}
        for materialization in self.plan.document.materializations:
            memories[materialization.id] = self._materialize(materialization, adapter, loader)
        staged = [m for m in self.plan.document.materializations if m.role == "staging"]
        before: dict[str, MemorySampled] = {}
        for materialization in staged:
            sample = self._release(materialization, adapter, memories[materialization.id])
            if sample is not None:
                before[materialization.id] = sample
        self.watch.mark()
        for authority in self.plan.document.authorities:
            self._establish(authority.logical_state_id, authority.materialization_id, memories)
        for execution in self.plan.document.execution:
            self._activate(execution, adapter)
            if fixture is not None:
                self._decode(execution, adapter, fixture)
        self.emit(self.probes.sample("after-decode"))
        for materialization in staged:
            if materialization.id in before:
                self._reclamation(materialization, memories[materialization.id], "after-decode", before)
        self.emit(self.probes.sample("closing"))
        for access in self.watch.accesses():
            self.emit(access)
        self.emit(self.watch.summary())

    def _accelerators(self) -> list[str]:
        """Torch devices whose memory the plan is bound to."""
        return sorted({key.removesuffix(".vram") for key in self.bindings.values() if key.endswith(".vram")})

    def _warm_up(self, adapter: Adapter) -> None:
        """Device contexts, kernels and library workspaces come before the baseline: they are nobody's state.

        An adapter may have a `warm_up(device)` that does the same for kernels of its own.
        """
        own = hasattr(adapter, "warm_up")
        for device in ["cpu", *self._accelerators()]:
            decode.warm_up(device)
            if device != "cpu":
                device_copies.warm_up(device)
            if own:
                answers.done(adapter, "warm_up", device)

    def _validate(self, observed: EnvironmentObserved) -> Validation:
        """Bind the reference, lay plan, machine, checkpoint and adapter together, and record what came out."""
        digest = None
        reference = self.request.reference
        if reference is not None:
            length = "length of the fixture file"
            try:
                data = reference.read_bytes()
                digest = sha256_digest(data)
                found, size = (
                    measured(digest, None, "SHA-256 of the fixture file"),
                    measured(len(data), "bytes", length),
                )
                del data
            except OSError as error:
                found = unavailable(None, "SHA-256 of the fixture file", str(error))
                size = unavailable("bytes", length, str(error))
            self.emit(
                ReferenceBound(
                    planned_digest=self.plan.correctness.reference_digest,
                    digest=found,
                    size=size,
                    provenance=decode.fixture_provenance(reference) if digest else {},
                )
            )
        validation = validate(self.handle, observed, self.checkpoint, self.request.adapter, digest)
        violations = validation.violations + self._files_as_planned()
        if violations:
            self.emit(PlanRejectedEvent(violations=violations))
            raise PlanRejected(
                f"the plan is rejected: {counted(len(violations), 'violation')}",
                [f"{v.code} {v.subject}: {v.message}" for v in violations],
                f"nothing was allocated; {remedy(violations)}",
            )
        self.emit(PlanAccepted(required_bytes=validation.required_bytes, bindings=validation.bindings))
        return validation

    def _files_as_planned(self) -> list[Violation]:
        """Planned file digests against those computed when the run was opened."""
        planned = self.plan.document.checkpoint
        opened = self.state().opened
        if planned is None or opened is None:
            return []
        found = {file.name: file.digest for file in opened.body.checkpoint_files}
        return [
            Violation(
                code="model.file-mismatch",
                subject=file.name,
                message=f"digest {file.digest} planned, {found[file.name].value or 'none'} computed from the file",
            )
            for file in planned.files
            if file.digest is not None and file.name in found and found[file.name].value != file.digest
        ]

    def _materialize(self, planned: Materialization, adapter: Adapter, loader: Loader) -> MemoryRange:
        """Allocate the range, have the adapter fill it, and record its claim and then what the probe sees."""
        self.emit(
            MaterializationStarted(
                materialization_id=planned.id,
                logical_state_id=planned.logical_state_id,
                memory_resource_id=planned.memory_resource_id,
                representation=planned.representation,
                role=planned.role,
                persistence=planned.persistence,
            )
        )
        lineage = [a.lineage for a in self.plan.document.authorities if a.materialization_id == planned.id]
        started = time.monotonic_ns()
        try:
            layout = answers.layout(adapter, planned.id)
            memory = self.ranges.allocate(
                self.plan.memory_resources[planned.memory_resource_id].kind,
                layout.length if planned.streamed_bytes is None else planned.expected_bytes,
                owner=planned.id,
                device=self._device(planned.memory_resource_id),
                tag=lineage[0] if lineage else None,
                pinned=planned.streamed_bytes is not None and bool(self._accelerators()),
            )
            claim = answers.claim(adapter, answers.done(adapter, "realize", planned.id, memory, loader))
        except KeyboardInterrupt:
            raise  # the operator's, and no failure of the materialization
        except BaseException as error:
            self.emit(
                MaterializationFailed(
                    materialization_id=planned.id, error_type=answers.raised_by(error), message=_one_line(error)
                )
            )
            raise
        elapsed = time.monotonic_ns() - started
        self.emit(
            MaterializationRealized(
                materialization_id=planned.id,
                logical_state_id=planned.logical_state_id,
                memory_resource_id=planned.memory_resource_id,
                representation=claim.representation,
                role=planned.role,
                persistence=planned.persistence,
                bytes=claimed(claim.bytes, "bytes", "the adapter's account of the tensors it placed"),
                tensors=claimed(claim.tensors, "tensors", "the adapter's account of the tensors it placed"),
                streamed_bytes=_optional_claim(claim.streamed_bytes, "what passed through the ring"),
                unplanned_bytes=_optional_claim(claim.unplanned_bytes, "what the adapter kept besides the plan"),
                elapsed_ns=measured(elapsed, "ns", "monotonic clock around allocation and adapter"),
            )
        )
        self.emit(self._observed(planned, adapter, layout, memory, loader))
        self.emit(self.probes.sample(f"materialized:{planned.id}"))
        return memory

    def _observed(
        self, planned: Materialization, adapter: Adapter, layout: Layout, memory: MemoryRange, loader: Loader
    ) -> MaterializationObserved:
        """What the probe sees; where content is verified, with the digests of what stays and of what it came from."""
        seen = self.probes.observe(planned, layout, memory)
        unit = self.plan.units.get(planned.logical_state_id)
        of_source = unit is not None and unit.semantic_class == "immutable_source"
        if not (self.request.verify_content and of_source and planned.persistence == "persistent"):
            return seen
        content = content_of(adapter, planned.id, memory, loader)
        blob = self.put_blob(content.rows, "application/json")
        digests = {"source_digest": content.source_digest, "resident_digest": content.resident_digest}
        return seen.model_copy(update={**digests, "tensors_blob": blob})

    def _device(self, memory_resource_id: str) -> str | None:
        """The torch device that carries an observed Memory Resource, or None for host memory."""
        key = self.bindings[memory_resource_id]
        return key.removesuffix(".vram") if key.endswith(".vram") else None

    def _release(self, planned: Materialization, adapter: Adapter, memory: MemoryRange) -> MemorySampled | None:
        """Release staging when the pure rule allows it; the sample taken just before, or None when it was refused."""
        qualifying = qualifying_ids(self.plan, self.state(), planned.id)
        if not qualifying:
            self.emit(
                ReleaseRefused(
                    materialization_id=planned.id,
                    qualifying_ids=[],
                    reason="no distinct, required, persistent materialization of the same unit is observed live with "
                    "planned resource, representation and bytes",
                )
            )
            return None
        self.emit(ReleaseAuthorized(materialization_id=planned.id, qualifying_ids=qualifying))
        before = self.probes.sample(f"before-release:{planned.id}")
        self.emit(before)
        bytes_before = self.probes.live_bytes(memory)
        answers.done(adapter, "release", planned.id)
        gc.collect()
        owners_total, owners_alive = self.probes.owners(memory)
        try:
            self.ranges.free(memory)
        except RangeInUse:
            # Somebody still looks into it: unmapping would leave a dangling view. The owners just counted say so, and
            # the region stays in smaps for everybody to see.
            self.progress(f"{planned.id} is still in use and stays mapped", 0, 0)
        bytes_after = self.probes.live_bytes(memory)
        self.emit(
            MaterializationReleased(
                materialization_id=planned.id,
                bytes_before=bytes_before,
                bytes_after=bytes_after,
                released_bytes=_difference(bytes_before, bytes_after),
                owners_total=owners_total,
                owners_alive=owners_alive,
            )
        )
        self.emit(self.probes.sample(f"after-release:{planned.id}"))
        self._reclamation(planned, memory, "after-release", {planned.id: before})
        return before

    def _reclamation(
        self,
        planned: Materialization,
        memory: MemoryRange,
        phase: Literal["after-release", "after-decode"],
        before: dict[str, MemorySampled],
    ) -> None:
        self.emit(self.probes.reclamation(planned.id, phase, memory, before[planned.id], planned.expected_bytes))

    def _establish(self, unit_id: str, materialization_id: str, memories: dict[str, MemoryRange]) -> None:
        """Say who holds authority: the tag as read back from the owner's range, and where that range lies."""
        memory = memories[materialization_id]
        self.emit(
            AuthorityEstablished(
                logical_state_id=unit_id,
                materialization_id=materialization_id,
                memory_resource_id=self._observed_resource(materialization_id),
                lineage=memory.read_tag(),
                owner_range=AddressRange(space=memory.space, start=memory.start, length=memory.length),
            )
        )

    def _observed_resource(self, materialization_id: str) -> Measurement:
        """The Memory Resource where a probe last saw that materialization."""
        seen = self.state().materializations.get(materialization_id)
        if seen is None or not seen.observed:
            return unavailable(None, "last observation of the materialization", "it was never observed")
        found: Measurement = seen.observed[-1].body.memory_resource_id
        return found

    def _activate(self, execution: Execution, adapter: Adapter) -> None:
        """Bind execution to live state; the Compute Unit is the one on whose memory the required state was found."""
        state: list[BoundState] = []
        for required in execution.required_state:
            for materialization in self.plan.document.materializations:
                resource = self._observed_resource(materialization.id).value
                if (
                    materialization.logical_state_id == required.logical_state_id
                    and materialization.persistence == "persistent"
                    and resource in required.memory_resources
                ):
                    state.append(
                        BoundState(
                            logical_state_id=required.logical_state_id,
                            materialization_id=materialization.id,
                            memory_resource_id=str(resource),
                        )
                    )
        device = answers.device(adapter, execution.id)
        self.emit(
            ExecutionActivated(
                execution_id=execution.id,
                compute_unit_id=self.probes.compute_unit(
                    [bound.materialization_id for bound in state], device, self.bindings
                ),
                strategy_unit=execution.strategy_unit,
                state=state,
            )
        )

    def _decode(self, execution: Execution, adapter: Adapter, fixture: ReferenceFixture) -> None:
        """Prefill once, then repeat decode from the restored baseline. Nothing is recorded while the model runs."""
        expected = self.plan.correctness
        for mode in answers.decode_modes(adapter):
            steps = 1 + expected.repetitions
            self.progress(f"decode {mode}", 0, steps)
            if expected.prefill:
                self.emit(decode.prefill(adapter, fixture, execution.id, expected, self.handle))
            answers.done(adapter, "save_baseline")
            self.progress(f"decode {mode}", 1, steps)
            for repetition in range(expected.repetitions):
                answers.done(adapter, "restore_baseline")
                self.emit(decode.repetition(adapter, fixture, execution.id, expected, self.handle, repetition, mode))
                self.progress(f"decode {mode}", 2 + repetition, steps)


def _accepted(validation: Validation) -> Adapter:
    if validation.adapter is None:
        raise RealizationFailed("no adapter was built, though nothing spoke against the plan")
    return validation.adapter


def _optional_claim(value: int | None, method: str) -> Measurement | None:
    return None if value is None else claimed(value, "bytes", method)


def _difference(before: Measurement, after: Measurement) -> Measurement:
    method = "live bytes before less live bytes after"
    if not isinstance(before.value, int) or not isinstance(after.value, int):
        return unavailable("bytes", method, "one of the two is not known")
    return measured(before.value - after.value, "bytes", method)
