"""What an adapter answers, held to its protocol before anybody builds on it.

An adapter is somebody else's code. An answer of another type would break far from its cause; here it is refused at once,
by naming the adapter, the method and what was expected.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from ledger.errors import RealizationFailed, TallyError
from realizer.adapter import DTYPE_BITS, MODES, Claim, Draft, Layout, ReferenceFixture, StepOutput, TensorPlace

if TYPE_CHECKING:
    import torch

    from ledger.plan import Plan
    from realizer.adapter import Adapter, DraftRequest
    from realizer.checkpoint import Checkpoint

SEE = "docs/adapters.md says what each method has to give back"
MEMBERS = (
    "name", "version", "recognises", "unsupported", "draft", "reference", "tokens", "violations", "layout", "realize",
    "decode_modes", "release", "activate", "prefill", "save_baseline", "restore_baseline", "decode", "model",
)  # fmt: skip
"""What every adapter has to have."""


class AdapterFault(RealizationFailed):
    """An adapter does not keep to the protocol."""


def refuse(adapter: Any, call: str, answer: Any, expected: str) -> NoReturn:
    """Raise AdapterFault: which call of which adapter gave back what, and what it should have."""
    shown = " ".join(repr(answer).split())[:60]
    given = "None" if answer is None else f"{type(answer).__name__} {shown}"
    raise AdapterFault(f"adapter {name_of(adapter)}: `{call}` gave back {given}; expected {expected}", SEE)


def name_of(adapter: Any) -> str:
    """The adapter's name as it calls itself, else its class's."""
    if adapter is None:
        return "that the plan names"
    name = getattr(adapter, "name", None)
    return repr(name) if isinstance(name, str) else getattr(adapter, "__qualname__", type(adapter).__qualname__)


def require_members(adapter: type[Adapter]) -> None:
    """Raises AdapterFault when the class lacks something that the protocol names, or leaves it abstract."""
    abstract: frozenset[str] = getattr(adapter, "__abstractmethods__", frozenset())
    if missing := [member for member in MEMBERS if member in abstract or not hasattr(adapter, member)]:
        raise AdapterFault(f"adapter {name_of(adapter)} lacks {', '.join(missing)}", SEE)
    require_names(adapter)


def require_names(adapter: type[Adapter]) -> None:
    """Raises AdapterFault when `name` or `version`, which every run records, is not there or no text."""
    for member in ("name", "version"):
        if not hasattr(adapter, member):
            raise AdapterFault(f"adapter {name_of(adapter)} lacks {member}: text, on the class", SEE)
        if not isinstance(value := getattr(adapter, member), str):
            what = f"is {type(value).__name__} {value!r}"
            raise AdapterFault(f"adapter {name_of(adapter)}: `{member}` {what}; expected text", SEE)


@contextmanager
def _asked(adapter: Any, call: str) -> Iterator[None]:
    """What the adapter's call raises is the adapter's: AdapterFault names both. Errors of ours say enough by themselves."""
    try:
        yield
    except TallyError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise AdapterFault(
            f"adapter {name_of(adapter)}: `{call}` raised {type(error).__name__}{f': {said}' if said else ''}",
            "TALLY_DEBUG=1 shows where",
        ) from error


# --- before a run -------------------------------------------------------------------------------------------------


def unsupported(adapter: type[Adapter], checkpoint: Checkpoint) -> str | None:
    with _asked(adapter, "unsupported"):
        why = adapter.unsupported(checkpoint)
    if why is not None and not isinstance(why, str):
        refuse(adapter, "unsupported", why, "the reason as text, or None")
    return why


def draft(adapter: type[Adapter], checkpoint: Checkpoint, request: DraftRequest) -> Draft:
    with _asked(adapter, "draft"):
        made = adapter.draft(checkpoint, request)
    if not isinstance(made, Draft):
        refuse(adapter, "draft", made, "a Draft")
    return made


def reference(
    adapter: type[Adapter], plan: Plan, checkpoint: Checkpoint, prompt: str | None, ids: list[int]
) -> ReferenceFixture:
    import torch

    with _asked(adapter, "reference"):
        made = adapter.reference(plan, checkpoint, prompt, ids)
    if not isinstance(made, ReferenceFixture):
        refuse(adapter, "reference", made, "a ReferenceFixture")
    for name, tensor in made.tensors.items():
        if not isinstance(tensor, torch.Tensor):
            refuse(adapter, "reference", tensor, f"a tensor as {name!r}")
    for name, value in made.provenance.items():
        if not isinstance(value, str):
            refuse(adapter, "reference", value, f"text as provenance {name!r}")
    return made


def tokens(adapter: type[Adapter], checkpoint: Checkpoint, prompt: str) -> list[int]:
    with _asked(adapter, "tokens"):
        ids = adapter.tokens(checkpoint, prompt)
    if not isinstance(ids, list) or not all(_whole(token) for token in ids):
        refuse(adapter, "tokens", ids, "a list of token ids")
    return ids


# --- in a run -----------------------------------------------------------------------------------------------------


def violations(adapter: Adapter) -> list[tuple[str, str]]:
    found = adapter.violations()
    if not isinstance(found, list) or not all(
        isinstance(entry, tuple) and len(entry) == 2 and all(isinstance(part, str) for part in entry) for entry in found
    ):
        refuse(adapter, "violations", found, "a list of (subject id, message)")
    return found


def layout(adapter: Adapter, materialization_id: str) -> Layout:
    return held_layout(adapter, "layout", adapter.layout(materialization_id))


def held_layout(adapter: Adapter, call: str, made: Any) -> Layout:
    """The layout that the call gave back. Raises AdapterFault for one with a place that is none."""
    if not isinstance(made, Layout) or not isinstance(made.representation, str) or not isinstance(made.places, tuple):
        refuse(adapter, call, made, "a Layout of a representation's name and a tuple of places")
    for place in made.places:
        if not isinstance(place, TensorPlace):
            refuse(adapter, call, place, "a TensorPlace in `places`")
        if place.dtype not in DTYPE_BITS:
            refuse(
                adapter, call, place.dtype, f"a safetensors dtype for {place.name!r}: one of {', '.join(DTYPE_BITS)}"
            )
        if not isinstance(place.shape, tuple) or not all(map(_whole, (*place.shape, place.offset))):
            refuse(adapter, call, (place.shape, place.offset), f"whole numbers as shape and offset of {place.name!r}")
    return made


def claim(adapter: Adapter, made: Any) -> Claim:
    """What `realize` gave back: a Claim with whole numbers."""
    if not isinstance(made, Claim):
        refuse(adapter, "realize", made, "a Claim")
    if not isinstance(made.representation, str):
        refuse(adapter, "realize", made.representation, "a representation's name in its Claim")
    for name in ("bytes", "tensors", "streamed_bytes", "unplanned_bytes"):
        value = getattr(made, name)
        if not _whole(value) and (value is not None or name in ("bytes", "tensors")):
            refuse(adapter, "realize", value, f"a whole number as `{name}` of its Claim")
    return made


def decode_modes(adapter: Adapter) -> tuple[str, ...]:
    modes = adapter.decode_modes()
    if not isinstance(modes, tuple) or not modes or not all(mode in MODES for mode in modes):
        refuse(adapter, "decode_modes", modes, f"a tuple of at least one of {', '.join(map(repr, MODES))}")
    return modes


def device(adapter: Adapter, execution_id: str) -> torch.device:
    import torch

    found = adapter.activate(execution_id)
    if not isinstance(found, torch.device):
        refuse(adapter, "activate", found, "the torch.device that the parameters are on")
    return found


def step(adapter: Adapter, call: str, made: Any) -> StepOutput:
    """What `prefill` or `decode` gave back: two tensors, and token ids."""
    import torch

    if not isinstance(made, StepOutput):
        refuse(adapter, call, made, "a StepOutput")
    for name in ("input", "output"):
        if not isinstance(tensor := getattr(made, name), torch.Tensor):
            refuse(adapter, call, tensor, f"a tensor as `{name}` of its StepOutput")
    if not isinstance(made.tokens, tuple) or not all(_whole(token) for token in made.tokens):
        refuse(adapter, call, made.tokens, "a tuple of token ids in its StepOutput")
    return made


def gave_up(adapter: Any, error: BaseException) -> TallyError:
    """The error for one that is no Exception (GeneratorExit, SystemExit, a cancellation): it must not pass for an end."""
    said = " ".join(str(error).split())[:200]
    return AdapterFault(
        f"the realization was ended by {type(error).__name__}{f' ({said})' if said else ''}, which adapter "
        f"{name_of(adapter)} or what it calls raised",
        "an adapter reports what went wrong by an Exception",
    )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
