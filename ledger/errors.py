"""Every error of ours: one base class carrying the message, the next thing to try, and the exit code.

TallyError                    exit 1
├── PlanError                 a document that is no plan, or a plan that cannot be read
├── PlanRejected        (3)   a readable plan that the checks, this machine or the adapter refuse
├── EventError                an event that may not be recorded, or that this version cannot read
├── LedgerError               a ledger that is absent, foreign, newer, read-only or whose guards are gone
│   ├── Conflict              somebody else appended at that sequence first
│   └── LedgerBroken    (4)   bytes, chain or tree are not what was appended
├── EvidenceBroken      (4)   an evidence file whose form, signature, chain or proofs do not hold
├── CheckpointError           a checkpoint file that is missing, truncated, garbled or inconsistent
├── RealizationFailed         the realization stopped; what was done is recorded
├── QueryError                SQL that is refused, wrong or over its limits
└── NotFound                  an unknown run, an ambiguous prefix, an unknown name
"""

from __future__ import annotations


class TallyError(Exception):
    """An error a person can act on.

    `message` says what happened and what was expected; `hint` says what to try; `exit_code` is the process exit status
    (section "exit codes" of the command reference). One place, the command line, turns these into output.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


def install(extra: str) -> str:
    """What to try where a package of that extra is missing. From the source tree: no index is trusted to have ours."""
    return f"install the extra `{extra}`: pip install '.[{extra}]' in the source tree"


class PlanError(TallyError):
    """The document is not a plan, or a plan part has the wrong form."""


class PlanRejected(TallyError):
    """A readable plan is refused; `violations` holds every reason at once."""

    exit_code = 3

    def __init__(self, message: str, violations: list[str], hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.violations = violations


class EventError(TallyError):
    """An event that may not be recorded (bad value) or that this version cannot read (unknown type, newer version)."""

    def __init__(self, message: str, hint: str | None = None, *, unknown_type: bool = False) -> None:
        super().__init__(message, hint)
        self.unknown_type = unknown_type


class LedgerError(TallyError):
    """The ledger cannot be used as asked: absent, foreign, newer, read-only, or its guards are gone."""


class Conflict(LedgerError):
    """The run's next sequence is not the one the writer expected; read again and retry."""


class LedgerBroken(LedgerError):
    """What is stored is not what was appended."""

    exit_code = 4


class EvidenceBroken(TallyError):
    """An evidence file whose form, signature, chain or proofs do not hold."""

    exit_code = 4


class CheckpointError(TallyError):
    """A checkpoint file is missing, truncated, garbled, or contradicts its index."""


class RealizationFailed(TallyError):
    """The realization stopped before it was complete; the run is closed and says how far it came."""


class QueryError(TallyError):
    """SQL that is refused, wrong, or over its time or row limit."""


class NotFound(TallyError):
    """No such run, code, adapter or name; or a prefix that fits several."""
