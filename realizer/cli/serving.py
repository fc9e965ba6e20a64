"""`tally serve`: the ledger in a browser, on this machine unless told otherwise, and only ever read."""

from __future__ import annotations

import socket
import sys

import click

from ledger.errors import LedgerError, TallyError
from realizer.cli.options import json_option, ledger_option
from realizer.cli.rendering import emit_json, say, warn


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8001, show_default=True, help="The port; 0 takes a free one."
)
@ledger_option
@json_option
def serve(host: str, port: int, ledger: str, as_json: bool) -> None:
    """Serve the ledger to a browser, read-only.

    Runs, a run's report, comparisons and named queries; tables, SQL and JSON by Datasette. It listens on this machine
    alone unless --host says otherwise, and never holds up whoever writes. Needs the extra `serve`.

    \b
    Examples:
      tally serve
      tally serve --ledger build/demo/tally.db --port 0
    """
    import datasette  # noqa: F401 - an absent extra is told before anything else is done
    import uvicorn

    from ledger import database
    from ledger.store import Store
    from realizer.cli.documents import ServingDocument
    from realizer.cli.site import LOOPBACK, site

    if database.is_postgres(ledger):
        raise LedgerError(
            "Datasette serves SQLite files, and this ledger is in PostgreSQL",
            "`tally db copy URL tally.db` makes a file to serve",
        )
    with Store.open(ledger) as store:
        store.runs()  # Datasette reads through the views: altered ones are refused before anything is served
        path = database.sqlite_path(ledger).absolute()
    local = host in LOOPBACK
    opened = _listen(host, port)
    with opened:
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{opened.getsockname()[1]}/"
        if not local:
            warn(f"whoever reaches {host} can read this ledger, and nothing asks who they are")
        if as_json:
            emit_json(ServingDocument(url=url))
            sys.stdout.flush()
        else:
            say(f"serving {ledger} at {url} (Ctrl-C ends it)")
        application = site(path, LOOPBACK if local else None).app()
        settings = uvicorn.Config(application, log_level="warning", lifespan="on", access_log=False)
        uvicorn.Server(settings).run(sockets=[opened])


def _listen(host: str, port: int) -> socket.socket:
    """An open socket. Raises TallyError when the address cannot be had."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise TallyError(f"cannot listen on {host}:{port}: {error.strerror}", "choose another with --port") from error
