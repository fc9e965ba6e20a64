"""A run as pictures: one self-contained HTML page, and a trace for Perfetto. Pure: events and judgement in, text out."""

from __future__ import annotations

from ledger.report.page import Beside, Link, Provenance, render_report
from ledger.report.trace import render_trace

__all__ = ["Beside", "Link", "Provenance", "render_report", "render_trace"]
