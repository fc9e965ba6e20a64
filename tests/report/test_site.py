"""The served ledger, asked in process: pages, JSON, refusals, and a writer that nothing holds up."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("datasette", reason="Datasette is not installed (extra `serve`)")

from ledger.named_queries import NAMED
from ledger.query import run_query
from ledger.store import Store
from realizer.cli.site import LOOPBACK, site, with_defaults
from tests.builders.ledgers import record_run
from tests.builders.runs import clean_bodies, small_plan
from tests.cli.seeding import FIRST, OTHER, SECOND, seed
from tests.report.conftest import Told


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TALLY_STATE_DIR", str(tmp_path / "state"))
    plan = small_plan()
    bodies = clean_bodies(plan)
    seed(tmp_path / "tally.db", plan, (FIRST, bodies), (SECOND, bodies), (OTHER, bodies[:12]))
    return tmp_path / "tally.db"


def ask(
    ledger: Path, *paths: str, hosts: frozenset[str] | None = LOOPBACK, headers: dict[str, str] | None = None
) -> list[Any]:
    """The answers to GET requests, in order."""

    async def asking() -> list[Any]:
        served = site(ledger, hosts)
        return [await served.client.get(path, headers=headers) for path in paths]

    return asyncio.run(asking())


def test_the_run_list_links_to_every_run(ledger: Path) -> None:
    (answer,) = ask(ledger, "/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    for run_id in (FIRST, SECOND, OTHER):
        assert f'href="/-/run/{run_id}"' in answer.text


def test_a_run_is_its_report_by_any_name(ledger: Path) -> None:
    full, latest = ask(ledger, f"/-/run/{OTHER}", "/-/run/@latest")
    assert full.status_code == 200
    assert full.text == latest.text
    assert "Planned and observed" in full.text


def test_two_runs_are_compared(ledger: Path) -> None:
    (answer,) = ask(ledger, f"/-/compare?a={FIRST}&b={OTHER}")
    assert answer.status_code == 200
    assert "Two runs side by side" in answer.text


@pytest.mark.parametrize(
    "path", ["/-/run/ffffffff", "/-/run/%3Cscript%3E", "/-/compare", "/-/compare?a=@latest", "/-/compare?a=x&b=y"]
)
def test_what_is_not_there_is_said(ledger: Path, path: str) -> None:
    (answer,) = ask(ledger, path)
    assert answer.status_code == 404
    assert "<script>" not in answer.text.partition("<main>")[2].partition("</main>")[0]


def test_json_comes_from_datasette(ledger: Path) -> None:
    runs, query = ask(ledger, "/tally/runs.json?_shape=array", f"/tally/memory-over-time.json?_shape=array&run={FIRST}")
    assert [row["run_id"] for row in runs.json()] == [FIRST, SECOND, OTHER]
    assert {row["run_id"] for row in query.json()} == {FIRST}


def test_each_named_query_answers_as_on_the_command_line(ledger: Path) -> None:
    given = {"a": FIRST, "b": SECOND, "tensor": "none"}
    asked, expected = [], []
    for query in NAMED.values():
        needed = {name: given[name] for name in query.parameters if name not in query.defaults}
        asked.append(f"/tally/{query.name}.json?_shape=array&" + "&".join(f"{k}={v}" for k, v in needed.items()))
        result = run_query(str(ledger), query.sql, needed)
        expected.append([dict(zip(result.columns, row, strict=True)) for row in result.rows])
    for answer, rows in zip(ask(ledger, *asked), expected, strict=True):
        assert answer.status_code == 200, answer.text
        assert answer.json() == rows


def test_defaults_stand_where_a_form_leaves_them_empty() -> None:
    late = NAMED["released-late"]
    assert "coalesce(nullif(:wait_ns, '')," in with_defaults(late)
    assert with_defaults(NAMED["memory-over-time"]).count("nullif(:run, '')") == 2


def test_the_query_page_lists_them_all(ledger: Path) -> None:
    (answer,) = ask(ledger, "/-/queries")
    for name in NAMED:
        assert f'href="/tally/{name}"' in answer.text
        assert f'href="/tally/{name}.json"' in answer.text


HOSTILE_SQL = [
    "attach 'stolen.db' as stolen",
    "vacuum into 'stolen.db'",
    "delete from events",
    "with x as (select 1) delete from events",
    "pragma writable_schema = 1",
    "select load_extension('x')",
    "select zeroblob(1000000000)",
    "select * from pragma_journal_mode",
    "select 1; drop table events",
    "explain attach 'stolen.db' as stolen",
    "create table x (y)",
]


@pytest.mark.parametrize("sql", HOSTILE_SQL)
def test_hostile_sql_is_refused_and_leaves_everything_as_it_was(
    ledger: Path, sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ledger.parent)
    before, files = hashlib.sha256(ledger.read_bytes()).digest(), beside(ledger)
    (answer,) = ask(ledger, f"/tally.json?sql={quote(sql)}")
    assert answer.status_code in (400, 500), answer.text
    assert answer.json()["ok"] is False
    assert hashlib.sha256(ledger.read_bytes()).digest() == before
    assert beside(ledger) == files


def beside(ledger: Path) -> set[str]:
    """The files in the ledger's folder, without its own journal."""
    return {path.name for path in ledger.parent.iterdir() if not path.name.startswith(ledger.name)}


def test_endless_sql_is_stopped(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realizer.cli.site.SQL_SECONDS", 0.2)
    sql = "with recursive c(x) as (select 1 union all select x+1 from c) select count(*) from c"
    (answer,) = ask(ledger, f"/tally.json?sql={quote(sql)}")
    assert answer.status_code == 400
    assert "interrupted" in answer.text.lower() or "took too long" in answer.text.lower()


def test_the_schema_pages_work_under_the_authorizer(ledger: Path) -> None:
    for answer in ask(ledger, "/tally", "/tally/events", "/tally/runs?_facet=verdict", "/tally/events?_sort=position"):
        assert answer.status_code == 200, answer.text[:500]


def test_other_names_for_this_machine_are_refused(ledger: Path) -> None:
    paths = ("/", "/tally/runs.json", f"/-/run/{FIRST}")
    for answer in ask(ledger, *paths, headers={"host": "rebound.example:8001"}):
        assert answer.status_code == 403
        assert FIRST not in answer.text
    for name in ("localhost", "127.0.0.1:8001", "[::1]:8001"):
        assert ask(ledger, "/", headers={"host": name})[0].status_code == 200
    assert ask(ledger, "/", hosts=None, headers={"host": "chosen.example"})[0].status_code == 200


def test_hostile_text_is_inert_on_every_page(tmp_path: Path, hostile: Told) -> None:
    seed(tmp_path / "hostile.db", hostile.plan, (FIRST, hostile.bodies))
    pages = ("/", f"/-/run/{FIRST}", "/hostile/events", "/hostile/materializations", "/hostile/authority-over-time")
    for path, answer in zip(pages, ask(tmp_path / "hostile.db", *pages), strict=True):
        assert answer.status_code == 200, path
        assert "<img" not in answer.text, path
        assert "<script>alert" not in answer.text, path
        assert "\u202e" not in answer.text, path
        assert "\x1b" not in answer.text, path
    (answer,) = ask(tmp_path / "hostile.db", "/hostile/materializations")
    assert "\\u202egpj" in answer.text


def test_the_file_itself_is_not_handed_out(ledger: Path) -> None:
    assert ask(ledger, "/tally.db")[0].status_code in (403, 404)


def test_a_writer_goes_on_while_pages_are_read_and_new_runs_appear(ledger: Path) -> None:
    recorded: list[str] = []
    failures: list[BaseException] = []

    def write() -> None:
        try:
            with Store.open(ledger, write=True) as store:
                recorded.extend(record_run(store) for _ in range(20))
        except BaseException as error:  # noqa: BLE001 - told by the assertion below
            failures.append(error)

    async def reading() -> str:
        served = site(ledger, LOOPBACK)
        writer = threading.Thread(target=write)
        writer.start()
        while writer.is_alive():
            answers = await asyncio.gather(
                served.client.get("/"), served.client.get("/tally/events.json"), served.client.get("/-/run/@latest")
            )
            assert [answer.status_code for answer in answers] == [200, 200, 200]
        writer.join()
        return str((await served.client.get("/")).text)

    last = asyncio.run(reading())
    assert failures == []
    assert len(recorded) == 20
    assert all(run_id in last for run_id in recorded)


def test_an_altered_setting_changes_nothing_for_another_datasette(tmp_path: Path, ledger: Path) -> None:
    """The plugin keeps to Datasettes that are ours: another one in the process has its own front page."""
    from datasette.app import Datasette

    site(ledger, LOOPBACK)
    answer = asyncio.run(_front(Datasette([], memory=True)))
    assert answer.status_code == 200
    assert "Tallystick" not in answer.text


async def _front(other: Any) -> Any:
    return await other.client.get("/")
