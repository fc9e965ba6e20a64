"""What an adapter answers, held to its protocol before anybody builds on it.

An adapter is somebody else's code. An answer of another type would break far from its cause; here it is refused at once,
by naming the adapter, the method and what was expected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, NoReturn

from ledger.errors import RealizationFailed, TallyError
from realizer.adapter import DTYPE_BITS, MODES, Claim, Draft, Layout, ReferenceFixture, StepOutput, TensorPlace

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from ledger.plan import Plan
    from realizer.adapter import Adapter, DraftRequest, PlanHandle
    from realizer.checkpoint import Checkpoint
    from realizer.loader import Loader

SEE = "docs/adapters.md says what each method has to give back"
MEMBERS = (
    "name", "version", "recognises", "unsupported", "draft", "reference", "tokens", "violations", "layout", "realize",
    "decode_modes", "release", "activate", "prefill", "save_baseline", "restore_baseline", "decode", "model",
)  # fmt: skip
"""What every adapter has to have."""

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class AdapterFault(RealizationFailed):
    """An adapter does not keep to the protocol, or raised something; then that is the error's cause."""


def refuse(adapter: Any, call: str, answer: Any, expected: str) -> NoReturn:
    """Raise AdapterFault: which call of which adapter gave back what, and what it should have."""
    whole = " ".join(repr(answer).split())
    shown = whole if len(whole) <= 60 else f"{whole[:60]}..."
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
def asked(adapter: Any, call: str) -> Iterator[None]:
    """What the adapter's call raises is the adapter's: AdapterFault names both. Errors of ours say enough by themselves.

    What is no Exception (an interrupt, SystemExit, a cancellation) passes.
    """
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
    with asked(adapter, "unsupported"):
        why = adapter.unsupported(checkpoint)
    if why is not None and not isinstance(why, str):
        refuse(adapter, "unsupported", why, "the reason as text, or None")
    return why


def draft(adapter: type[Adapter], checkpoint: Checkpoint, request: DraftRequest) -> Draft:
    with asked(adapter, "draft"):
        made = adapter.draft(checkpoint, request)
    if not isinstance(made, Draft):
        refuse(adapter, "draft", made, "a Draft")
    for name in DRAFT_LISTS:
        parts = getattr(made, name)
        if not isinstance(parts, list):
            refuse(adapter, "draft", parts, f"a list as `{name}` of its Draft")
        for part in parts:
            if not isinstance(part, dict):
                refuse(
                    adapter, "draft", part, f"dictionaries in `{name}`: part.model_dump(exclude_none=True) gives one"
                )
            _as_json(adapter, part, name)
    for part in made.materializations:
        if lacking := [name for name in ("persistence", "requirement", "expected_bytes") if name not in part]:
            refuse(adapter, "draft", part, f"`{lacking[0]}` in each of `materializations`")
    if not isinstance(made.plan_version, str):
        refuse(adapter, "draft", made.plan_version, "text as `plan_version`")
    if not isinstance(made.options, dict):
        refuse(adapter, "draft", made.options, "a dictionary as `options`")
    _as_json(adapter, made.options, "options")
    return made


DRAFT_LISTS = (
    "logical_state_units", "materializations", "authorities", "execution", "forbidden_persistent_materializations"
)  # fmt: skip


def _as_json(adapter: Any, part: dict[str, Any], name: str) -> None:
    try:
        json.dumps(part)
    except (TypeError, ValueError) as error:
        raise AdapterFault(
            f"adapter {name_of(adapter)}: `draft` gave back what is no JSON in `{name}`: {error}", SEE
        ) from error


def reference(
    adapter: type[Adapter], plan: Plan, checkpoint: Checkpoint, prompt: str | None, ids: list[int]
) -> ReferenceFixture:
    import torch

    with asked(adapter, "reference"):
        made = adapter.reference(plan, checkpoint, prompt, ids)
    if not isinstance(made, ReferenceFixture):
        refuse(adapter, "reference", made, "a ReferenceFixture")
    for name, tensor in made.tensors.items():
        if not isinstance(tensor, torch.Tensor):
            refuse(adapter, "reference", tensor, f"a tensor as {name!r}")
        if name in ("prompt.tokens", "decode.tokens") and tensor.dtype != torch.int64:
            refuse(adapter, "reference", tensor.dtype, f"int64 as dtype of {name!r}")
    for name, value in made.provenance.items():
        if not isinstance(value, str):
            refuse(adapter, "reference", value, f"text as provenance {name!r}")
    return made


def tokens(adapter: type[Adapter], checkpoint: Checkpoint, prompt: str) -> list[int]:
    with asked(adapter, "tokens"):
        ids = adapter.tokens(checkpoint, prompt)
    if not isinstance(ids, list):
        refuse(adapter, "tokens", ids, "a list of token ids")
    if why := _no_tokens(ids):
        refuse(adapter, "tokens", ids, f"a list of token ids: {why}")
    return list(map(int, ids))


def synth(adapter: Any, folder: Path, options: dict[str, Any]) -> Any:
    """What the adapter's `synth` says of what it wrote: `tensors`, `bytes` and `revision`."""
    with asked(adapter, "synth"):
        made = adapter.synth(folder, options)
    for name, kind in (("tensors", int), ("bytes", int), ("revision", str)):
        if not isinstance(getattr(made, name, None), kind):
            refuse(adapter, "synth", made, f"an object whose `{name}` is {'text' if kind is str else 'a whole number'}")
    return made


def published(adapter: Any, name: str) -> bytes:
    with asked(adapter, "published"):
        made = adapter.published(name)
    if not isinstance(made, bytes):
        refuse(adapter, "published", made, "the plan's bytes")
    return made


# --- in a run -----------------------------------------------------------------------------------------------------


def built(adapter: type[Adapter], handle: PlanHandle, checkpoint: Checkpoint) -> Adapter:
    with asked(adapter, "__init__"):
        return adapter(handle, checkpoint)


def done(adapter: Adapter, call: str, *arguments: Any) -> Any:
    """What that call of the adapter gives back, which nobody looks at or the caller checks."""
    with asked(adapter, call):
        return getattr(adapter, call)(*arguments)


def violations(adapter: Adapter) -> list[tuple[str, str]]:
    with asked(adapter, "violations"):
        found = adapter.violations()
    if not isinstance(found, list) or not all(
        isinstance(entry, tuple) and len(entry) == 2 and all(isinstance(part, str) for part in entry) for entry in found
    ):
        refuse(adapter, "violations", found, "a list of (subject id, message)")
    return found


def layout(adapter: Adapter, materialization_id: str) -> Layout:
    return held_layout(adapter, "layout", done(adapter, "layout", materialization_id))


def held_layout(adapter: Adapter, call: str, made: Any) -> Layout:
    """The layout that the call gave back. Raises AdapterFault for one with a place that is none, or two that overlap."""
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
    before: TensorPlace | None = None
    for place in sorted((place for place in made.places if place.bytes), key=lambda place: place.offset):
        if before is not None and place.offset < before.offset + before.bytes:
            raise AdapterFault(
                f"adapter {name_of(adapter)}: `{call}` gave back the layout {made.representation!r} in which {place.name!r} "
                f"begins at byte {place.offset}, inside {before.name!r} ({before.offset} to {before.offset + before.bytes})",
                "`pack` lays tensors one after another",
            )
        before = place
    return made


def derived_digests(adapter: Any, materialization_id: str, loader: Loader) -> dict[str, str]:
    """What computed tensors ought to be, by the adapter; empty for one that does not say."""
    if not hasattr(adapter, "derived_digests"):
        return {}
    found = done(adapter, "derived_digests", materialization_id, loader)
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(digest, str) and DIGEST.fullmatch(digest) for name, digest in found.items()
    ):
        refuse(adapter, "derived_digests", found, "a dictionary of place names to `sha256:` and 64 hex digits")
    return found


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
    modes = done(adapter, "decode_modes")
    if not isinstance(modes, tuple) or not modes or not all(mode in MODES for mode in modes):
        refuse(adapter, "decode_modes", modes, f"a tuple of at least one of {', '.join(map(repr, MODES))}")
    return modes


def device(adapter: Adapter, execution_id: str) -> torch.device:
    import torch

    found = done(adapter, "activate", execution_id)
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
    if not isinstance(made.tokens, tuple):
        refuse(adapter, call, made.tokens, "a tuple of token ids in its StepOutput")
    if why := _no_tokens(made.tokens):
        refuse(adapter, call, made.tokens, f"a tuple of token ids in its StepOutput: {why}")
    if all(type(token) is int for token in made.tokens):
        return made
    return replace(made, tokens=tuple(map(int, made.tokens)))


def answer(adapter: Any, prompt: str, most_tokens: int) -> str:
    """What the live model says to the prompt."""
    with asked(adapter, "answer"):
        said = adapter.answer(prompt, most_tokens)
    if not isinstance(said, str):
        refuse(adapter, "answer", said, "the text that follows the prompt")
    return said


def raised_by(error: BaseException) -> str:
    """The class of what went wrong: of what an adapter raised, where the error is about that."""
    return type(error.__cause__ if isinstance(error, AdapterFault) and error.__cause__ is not None else error).__name__


def gave_up(adapter: Any, error: BaseException) -> TallyError:
    """The error for one that is no Exception (GeneratorExit, SystemExit, a cancellation): it must not pass for an end."""
    said = " ".join(str(error).split())[:200]
    return AdapterFault(
        f"the realization was ended by {type(error).__name__}{f' ({said})' if said else ''}, which adapter "
        f"{name_of(adapter)} or what it calls raised",
        "an adapter reports what went wrong by an Exception",
    )


def _no_tokens(ids: Sequence[Any]) -> str | None:
    """Why these are no token ids, or None. Whole numbers of numpy are such numbers too."""
    for at, token in enumerate(ids):
        if not isinstance(token, Integral) or isinstance(token, bool):
            return (
                f"entry {at} is {type(token).__name__}; expected whole numbers, as `.tolist()` of a tensor gives them"
            )
        if token < 0:
            return f"entry {at} is {token}; ids are not negative"
    return None


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
