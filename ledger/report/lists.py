"""The served pages that are no report: the list of runs, the named queries, and what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledger.documents import RunSummary
from ledger.report.page import Link, assets, environment

PAGE = 1_000
"""Runs on one page of the list."""


@dataclass(frozen=True)
class ListedQuery:
    """A named query with the addresses of its page and of its JSON."""

    name: str
    description: str
    parameters: Sequence[str]
    href: str
    json: str


def _render(template: str, title: str, links: Sequence[Link], **given: object) -> str:
    return environment().get_template(template).render(title=title, links=links, **given, **assets())


def render_runs(
    runs: Sequence[RunSummary],
    *,
    location: str,
    links: Sequence[Link],
    run_path: str,
    compare: str,
    page: int = 0,
    list_path: str = "/",
) -> str:
    """The list of runs, newest first, `PAGE` at a time; `runs` come oldest first, as the store gives them."""
    newest_first = runs[::-1]
    page = max(page, 0)
    rows = newest_first[page * PAGE : (page + 1) * PAGE]
    return _render(
        "runs.html.j2",
        "Runs",
        links,
        rows=rows,
        total=len(runs),
        location=location,
        run_path=run_path,
        compare=compare,
        newer=f"{list_path}?page={page - 1}" if page else None,
        older=f"{list_path}?page={page + 1}" if len(runs) > (page + 1) * PAGE else None,
    )


def render_queries(queries: Sequence[ListedQuery], *, links: Sequence[Link]) -> str:
    """The named queries."""
    return _render("queries.html.j2", "Named queries", links, queries=queries)


def render_message(title: str, message: str, hint: str | None, *, links: Sequence[Link]) -> str:
    """Something that went wrong, and what to try."""
    return _render("message.html.j2", title, links, message=message, hint=hint)
