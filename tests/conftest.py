"""What holds for every test: one thread a process, so that tests beside each other do not wait for each other's spinning.

Two OpenMP threads on two cores that something else uses as well take ten times the processor time of one.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
