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
MAX_POLICY_BYTES = 1024 * 1024
NAMES: dict[str, str] = {
    "signature": "a given public key signed the file",
    "pin": "a given pin covers the run and holds",
    "frozen": "the plan was frozen, in the same ledger, before the run was opened",
    "challenge": "the run was opened with the challenge given to verify",
    "first-run": "no earlier run of the same model is in the ledger, by the signer's word or proven with --ledger",
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
    """What must hold; `plans` are the plan digests of which one must be the run's (none: any plan)."""

    names: frozenset[str] = frozenset()
    assurance: Assurance | None = None
    plans: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Requirements:
        """From `signature,pin,frozen,challenge,first-run,assurance=content-verified,...`; an empty text demands nothing.

        Raises PolicyError naming the first item that is no requirement.
        """
        return cls.of([item.strip() for item in text.split(",") if item.strip()])

    @classmethod
    def of(cls, items: list[str]) -> Requirements:
        """From a list of items as in `parse`."""
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
        return cls(frozenset(names), assurance, tuple(plans))

    def __or__(self, other: Requirements) -> Requirements:
        """Both sets together; plan lists are joined."""
        levels = [level for level in (self.assurance, other.assurance) if level is not None]
        return Requirements(
            self.names | other.names,
            max(levels, key=ASSURANCES.index) if levels else None,
            self.plans + other.plans,
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

    Raises PolicyError for a file that cannot be read, an unknown format or key, or a value of the wrong type.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_POLICY_BYTES + 1)
        if len(data) > MAX_POLICY_BYTES:
            raise PolicyError(f"policy {path} is longer than {MAX_POLICY_BYTES} bytes, as none is")
        raw: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise PolicyError(f"policy {path} cannot be read: {error.strerror}", "check the path") from error
    except (ValueError, RecursionError) as error:  # malformed, not UTF-8, a number or a nesting beyond all use
        raise PolicyError(f"policy {path} is not TOML: {error}") from error
    if raw.get("format") != POLICY_FORMAT:
        raise PolicyError(f"policy {path} has format {raw.get('format')!r}, expected {POLICY_FORMAT!r}")
    unknown = sorted(raw.keys() - {"format", "require", "key", "pin", "challenge"})
    if unknown:
        raise PolicyError(
            f"policy {path} has unknown keys: {', '.join(unknown)}", "a demand that is not read is no demand"
        )
    require = raw.get("require", [])
    if not isinstance(require, list) or not all(isinstance(item, str) for item in require):
        raise PolicyError(f"policy {path}: `require` is not a list of strings")
    for name in ("key", "pin", "challenge"):
        if not isinstance(raw.get(name, ""), str) or "\0" in raw.get(name, ""):
            raise PolicyError(f"policy {path}: `{name}` is not a string of text")
    return Policy(
        require=Requirements.of(require),
        key=path.parent / raw["key"] if "key" in raw else None,
        pin=path.parent / raw["pin"] if "pin" in raw else None,
        challenge=raw.get("challenge"),
    )
