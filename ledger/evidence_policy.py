"""What a verifier demands of evidence beyond being unbroken: requirements, and the `tally-policy.toml` that holds them."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from ledger.bodies import Assurance
from ledger.errors import TallyError

POLICY_FORMAT = "tally.policy/1"
MAX_POLICY_BYTES = 64 * 1024
MAX_DOTS = 64
"""In a line: reading a dotted key takes time that grows with the square of its parts, and no key here has two."""
MAX_NAMED = 5
"""Unknown keys that an error names."""
NAMES: dict[str, str] = {
    "signature": "a given public key signed the file",
    "pin": "a given pin covers the run and holds",
    "frozen": "the plan was frozen, in the same ledger, before the run was opened",
    "challenge": "the run was opened with the challenge given to verify",
    "first-run": "no earlier run of the same model is in the exporting ledger, by the signer's word or proven with --ledger",
    "complete": "proven from a ledger that no event, witness or prior run was left out",
    "blobs": "every document that events refer to is attached and unaltered",
    "witness": "a separate process took samples of the run, to its end",
}
"""Requirements without a value, and what each demands. With one: `assurance=LEVEL` and `plan=sha256:...`."""

ASSURANCES: tuple[Assurance, ...] = get_args(Assurance)
"""Weakest first."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


class PolicyError(TallyError):
    """A requirement that does not exist, or a policy file that cannot be read."""


@dataclass(frozen=True)
class Requirements:
    """What must hold; `plans` are the plan digests of which one must be the run's (null: any plan; empty: no plan will do)."""

    names: frozenset[str] = frozenset()
    assurance: Assurance | None = None
    plans: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, text: str) -> Requirements:
        """From `signature,pin,frozen,challenge,first-run,assurance=content-verified,...`; several plans: one of them.

        Raises PolicyError naming the first item that is no requirement, and for a list without any: a gate that demands
        nothing is a mistake.
        """
        return cls.of([item.strip() for item in text.split(",") if item.strip()])

    @classmethod
    def of(cls, items: list[str]) -> Requirements:
        """From a list of items as in `parse`."""
        if not items:
            raise PolicyError("the list of requirements is empty, and demands nothing", f"known: {', '.join(known())}")
        names: set[str] = set()
        assurance: Assurance | None = None
        plans: list[str] = []
        for item in items:
            name, separator, value = item.partition("=")
            if name in NAMES and not separator:
                names.add(name)
            elif name == "assurance" and value in ASSURANCES:
                # Two levels demand both, so the stronger stands.
                assurance = max(assurance or ASSURANCES[0], _level(value), key=ASSURANCES.index)
            elif name == "plan" and _DIGEST.fullmatch(value):
                plans.append(value)
            else:
                raise PolicyError(f"{item!r} is no requirement", f"known: {', '.join(known())}")
        return cls(frozenset(names), assurance, tuple(plans) if plans else None)

    def __or__(self, other: Requirements) -> Requirements:
        """Both sets together: whatever either refuses is refused, so of two lists of plans those in both remain."""
        plans = self.plans if other.plans is None else other.plans
        if self.plans is not None and other.plans is not None:
            plans = tuple(plan for plan in self.plans if plan in other.plans)
        levels = [level for level in (self.assurance, other.assurance) if level is not None]
        return Requirements(
            self.names | other.names,
            max(levels, key=ASSURANCES.index) if levels else None,
            plans,
        )


def _level(value: str) -> Assurance:
    return ASSURANCES[ASSURANCES.index(value)]


def known() -> list[str]:
    """Every requirement as it is written."""
    return [*NAMES, f"assurance={'|'.join(ASSURANCES)}", "plan=sha256:..."]


@dataclass(frozen=True)
class Policy:
    """A policy file: what is required, and the anchors to verify with (paths relative to the policy's folder)."""

    require: Requirements = field(default_factory=Requirements)
    key: Path | None = None
    pin: Path | None = None
    challenge: str | None = None


def read_policy(path: Path) -> Policy:
    """Read a `tally-policy.toml`.

        format = "tally.policy/1"
        require = ["signature", "frozen", "assurance=content-verified"]
        key = "release.pub"
        pin = "ledger.pin"
        challenge = "text"

    Raises PolicyError for a file that cannot be read, an unknown format or key, a value of the wrong type or none, and for
    a policy that demands nothing.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_POLICY_BYTES + 1)
        if len(data) > MAX_POLICY_BYTES:
            raise PolicyError(f"policy {path} is longer than {MAX_POLICY_BYTES} bytes, as none is")
        if any(line.count(b".") > MAX_DOTS for line in data.splitlines()):
            raise PolicyError(f"policy {path} has a line with more than {MAX_DOTS} dots, as none has")
        raw: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise PolicyError(f"policy {path} cannot be read: {error.strerror}", "check the path") from error
    except (ValueError, RecursionError) as error:  # malformed, not UTF-8, a number or a nesting beyond all use
        raise PolicyError(f"policy {path} is not TOML: {error}") from error
    if raw.get("format") != POLICY_FORMAT:
        raise PolicyError(f"policy {path} has format {raw.get('format')!r}, expected {POLICY_FORMAT!r}")
    unknown = sorted(raw.keys() - {"format", "require", "key", "pin", "challenge"})
    if unknown:
        more = f" and {len(unknown) - MAX_NAMED} more" if len(unknown) > MAX_NAMED else ""
        named = ", ".join(key[:40] for key in unknown[:MAX_NAMED]) + more
        raise PolicyError(f"policy {path} has unknown keys: {named}", "a demand that is not read is no demand")
    require = raw.get("require")
    if require is not None and not (isinstance(require, list) and all(isinstance(item, str) for item in require)):
        raise PolicyError(f"policy {path}: `require` is not a list of strings")
    for name in ("key", "pin", "challenge"):
        if name in raw and (not isinstance(raw[name], str) or not raw[name] or "\0" in raw[name]):
            raise PolicyError(f"policy {path}: `{name}` is not a string of text")
    if len(raw) == 1:
        raise PolicyError(f"policy {path} demands nothing", "give it `require`, `key`, `pin` or `challenge`")
    try:
        demanded = Requirements() if require is None else Requirements.of(require)
    except PolicyError as error:
        raise PolicyError(f"policy {path}: {error.message}", error.hint) from error
    return Policy(
        require=demanded,
        key=path.parent / raw["key"] if "key" in raw else None,
        pin=path.parent / raw["pin"] if "pin" in raw else None,
        challenge=raw.get("challenge"),
    )
