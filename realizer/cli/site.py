"""The served ledger: Datasette over its file, read-only, with the run list, reports and comparisons as a plugin."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasette import hookimpl
from datasette.app import Datasette
from datasette.plugins import pm
from datasette.utils.asgi import Request, Response

from ledger.errors import NotFound, TallyError
from ledger.named_queries import NAMED, NamedQuery
from ledger.query import SQLITE_FUNCTIONS
from ledger.report.lists import ListedQuery, render_message, render_queries, render_runs
from ledger.report.page import Link, prepare
from ledger.report.wording import inert
from ledger.store import Store
from realizer.cli.reporting import page_of, place_in
from realizer.cli.resolving import from_store

NAME = "tallystick"
SQL_SECONDS = 10
MOST_ROWS = 10_000
"""As `tally query` has them."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def site(location: Path, hosts: frozenset[str] | None) -> Datasette:
    """Datasette on a ledger's SQLite file. `hosts`: the names it answers to, so that a foreign page cannot reach it by
    pointing a name of its own at this machine; null: any.
    """
    if not pm.has_plugin(NAME):
        pm.register(sys.modules[__name__], name=NAME)
    prepare()
    # Without this, every mistyped query prints a screenful of tracebacks with local variables on the server's terminal.
    pm.get_plugin("datasette.handle_exception").rich = None
    return Datasette(
        [str(location)],
        settings={
            "sql_time_limit_ms": SQL_SECONDS * 1_000,
            "max_returned_rows": MOST_ROWS,
            "allow_download": False,
            "suggest_facets": False,  # asks the views once more for every column
            "allow_csv_stream": False,
            "num_sql_threads": 3,
        },
        metadata={
            "title": "Tallystick ledger",
            "plugins": {NAME: {"location": str(location), "hosts": sorted(hosts) if hosts is not None else None}},
        },
    )


def _about(datasette: Datasette) -> dict[str, Any] | None:
    """Our settings of that Datasette, or null for one that is not ours."""
    found: dict[str, Any] | None = datasette.plugin_config(NAME)
    return found


def _database(datasette: Datasette) -> str:
    return next(name for name in datasette.databases if not name.startswith("_"))


# --- hooks --------------------------------------------------------------------------------------------------------


@hookimpl
def register_routes(datasette: Datasette) -> list[tuple[str, Callable[..., Awaitable[Response]]]]:
    if _about(datasette) is None:
        return []
    return [
        (r"^/$", _runs),
        (r"^/-/run/(?P<run>[^/]{1,80})$", _run),
        (r"^/-/compare$", _compare),
        (r"^/-/queries$", _queries),
    ]


@hookimpl
def canned_queries(datasette: Datasette, database: str) -> dict[str, dict[str, str]]:
    if _about(datasette) is None or database.startswith("_"):
        return {}
    return {
        query.name: {"sql": with_defaults(query), "title": query.name, "description": query.description}
        for query in NAMED.values()
    }


def with_defaults(query: NamedQuery) -> str:
    """The query's SQL for a form, where what is left out comes as an empty text: its default then stands."""
    sql = query.sql
    for name, default in query.defaults.items():
        if default is None:
            value = f"nullif(:{name}, '')"
        elif isinstance(default, int | float):
            value = f"coalesce(nullif(:{name}, ''), {default!r})"
        else:
            quoted = str(default).replace("'", "''")
            value = f"coalesce(nullif(:{name}, ''), '{quoted}')"
        sql = re.sub(rf"(?<!:):{name}\b", value, sql)
    return sql.strip()


@hookimpl
def prepare_connection(conn: Any, database: str, datasette: Datasette) -> None:
    if _about(datasette) is not None and not database.startswith("_"):
        conn.set_authorizer(may_read)


# Numbers of SQLite's C interface (sqlite3.h): the drivers do not export all of them.
_OK, _DENY = 0, 1
_PRAGMA, _READ, _SELECT, _FUNCTION, _RECURSIVE = 19, 20, 21, 31, 33
PRAGMAS = frozenset(
    """
    compile_options database_list foreign_key_list function_list index_info index_list index_xinfo max_page_count
    page_count page_size schema_version table_info table_xinfo
    """.split()  # noqa: SIM905 - a word list is read as words
)
SETTING = frozenset({"max_page_count", "page_size", "schema_version"})
"""Pragmas that set something when they are given a value."""

FUNCTIONS = SQLITE_FUNCTIONS | {"escape_fts"}


def may_read(action: int, first: str | None, second: str | None, schema: str | None, inner: str | None) -> int:
    """SQLite's authorizer: reading, computing and looking at the schema; nothing else (no ATTACH, no VACUUM INTO)."""
    if action in (_READ, _SELECT, _RECURSIVE):
        return _OK
    if action == _FUNCTION:
        return _OK if second is not None and second.lower() in FUNCTIONS else _DENY
    if action == _PRAGMA and first in PRAGMAS:
        return _OK if second is None or first not in SETTING else _DENY
    return _DENY


@hookimpl
def extra_css_urls(datasette: Datasette) -> list[str]:
    """On Datasette's own pages long lines of SQL are broken too, so that they fit a telephone, and a run's id is not."""
    if _about(datasette) is None:
        return []
    return ["data:text/css,pre%7Bwhite-space:pre-wrap;overflow-wrap:anywhere%7Dtd.col-run_id%7Bwhite-space:nowrap%7D"]


@hookimpl
def render_cell(value: Any, datasette: Datasette) -> str | None:
    """A cell of Datasette's own tables in which nothing acts (direction marks, controls); null: as Datasette has it."""
    if _about(datasette) is None or not isinstance(value, str) or value.isprintable():
        return None
    return inert(value)


@hookimpl
def asgi_wrapper(datasette: Datasette) -> Callable[[Any], Any]:
    about = _about(datasette)
    hosts = about["hosts"] if about is not None else None

    def wrapped(app: Any) -> Any:
        async def answering(scope: dict[str, Any], receive: Any, send: Any) -> None:
            if hosts is not None and scope["type"] == "http" and _host(scope) not in hosts:
                refusal = Response.text("this ledger is served to its own machine only", status=403)
                await refusal.asgi_send(send)
                return
            await app(scope, receive, send)

        return answering

    return wrapped


def _host(scope: dict[str, Any]) -> str:
    """The host that the request names, without its port."""
    named = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
    return str(re.sub(r":\d*$", "", named).strip("[]").lower())


# --- pages --------------------------------------------------------------------------------------------------------


def _links(datasette: Datasette) -> list[Link]:
    urls = datasette.urls
    return [
        Link(urls.path("/"), "Runs"),
        Link(urls.path("/-/queries"), "Named queries"),
        Link(urls.database(_database(datasette)), "Tables, views and SQL"),
    ]


async def _answer(datasette: Datasette, make: Callable[[Store], str]) -> Response:
    """A page made in a thread of its own, from the ledger as it is now; errors become a page that says so."""

    def work() -> tuple[str, int]:
        about = _about(datasette)
        assert about is not None
        try:
            with Store.open(about["location"]) as store:
                return make(store), 200
        except NotFound as error:
            return render_message("Not found", error.message, error.hint, links=_links(datasette)), 404
        except TallyError as error:
            return render_message("This cannot be shown", error.message, error.hint, links=_links(datasette)), 500

    page, status = await asyncio.to_thread(work)
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    return Response.html(page, status=status, headers=headers)


async def _runs(request: Request, datasette: Datasette) -> Response:
    number = request.args.get("page") or "0"
    urls = datasette.urls

    def make(store: Store) -> str:
        return render_runs(
            store.runs(),
            location=Path(store.location).name,
            links=_links(datasette),
            run_path=urls.path("/-/run/"),
            compare=urls.path("/-/compare"),
            page=int(number) if number.isdecimal() and len(number) < 7 else 0,
            list_path=urls.path("/"),
        )

    return await _answer(datasette, make)


async def _run(request: Request, datasette: Datasette) -> Response:
    name = request.url_vars["run"]

    def make(store: Store) -> str:
        run_id = store.resolve(name)
        database = _database(datasette)
        data = [
            Link(datasette.urls.table(database, view, format="json") + f"?run_id={run_id}&_shape=array", f"{view}.json")
            for view in ("materializations", "memory_samples")
        ]
        links = [*_links(datasette), *data]
        return page_of(from_store(store, run_id), provenance=place_in(store, run_id), links=links)

    return await _answer(datasette, make)


async def _compare(request: Request, datasette: Datasette) -> Response:
    a, b = request.args.get("a"), request.args.get("b")

    def make(store: Store) -> str:
        if not a or not b:
            raise NotFound("two runs are compared: A and B", "choose them in the list of runs")
        first, second = store.resolve(a), store.resolve(b)
        return page_of(
            from_store(store, first),
            from_store(store, second),
            provenance=replace(place_in(store, first), checkpoint=None),
            links=_links(datasette),
        )

    return await _answer(datasette, make)


async def _queries(request: Request, datasette: Datasette) -> Response:
    database = _database(datasette)
    urls = datasette.urls

    def make(_store: Store) -> str:
        return render_queries(
            [
                ListedQuery(
                    query.name,
                    query.description,
                    [name if name not in query.defaults else f"[{name}]" for name in query.parameters],
                    str(urls.query(database, query.name)),
                    str(urls.query(database, query.name, format="json")),
                )
                for query in NAMED.values()
            ],
            links=_links(datasette),
        )

    return await _answer(datasette, make)
