"""`python -m ledger.reconcile` writes the table of invariants (docs/invariants.md) to stdout."""

import sys

from ledger.reconcile import INVARIANTS, markdown

sys.stdout.write(markdown(INVARIANTS))
