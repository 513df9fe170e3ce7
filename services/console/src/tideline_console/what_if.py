"""What-if: the past of tables replayed under another policy by `tideline policy test`, drawn beside what happened."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tideline_console import charts, queries
from tideline_console.forms import form_of
from tideline_console.model import ReadModel, Row
from tideline_console.people import person_of
from tideline_console.settings import ConsoleSettings
from tideline_console.text import bytes_text
from tideline_runtime.policy.groups import read_file
from tideline_table.clock import Clock
from tideline_table.errors import InvalidOption, TidelineError

DAYS = ("1", "7", "30")
MOST_TABLES = 100
DRAWN = 20
WAIT_S = 120.0
MOST_BYTES = 1 << 18


class WhatIfPages:
    """The form of a policy, and what it would have done. For operators: a replay takes the processor of this machine."""

    def __init__(self, settings: ConsoleSettings, model: ReadModel, clock: Clock, respond: Callable[..., Response]) -> None:
        self._settings, self._model, self._clock, self._respond = settings, model, clock, respond
        self._guard = threading.Lock()

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/policies/what-if", self._ask, methods=["GET"]),
            Route("/policies/what-if", self._try, methods=["POST"]),
        ]

    async def _ask(self, request: Request) -> Response:
        _check_operator(request)
        return await run_in_threadpool(self._shown, request, {})

    async def _try(self, request: Request) -> Response:
        _check_operator(request)
        form = await form_of(request, MOST_BYTES)
        return await run_in_threadpool(self._shown, request, form)

    def _shown(self, request: Request, form: Mapping[str, str]) -> Response:
        context: dict[str, Any] = {"title": "What-if", "found": None, "failure": "", "days": DAYS, "words": form.get("q", "")}
        context["chosen"] = form.get("days", DAYS[1])
        try:
            context["policy"] = form.get("policy", "").replace("\r\n", "\n") or self._present()
            if form:
                context["found"] = self._replayed(context["policy"], context["chosen"], context["words"])
        except TidelineError as error:
            context["failure"] = str(error)
        return self._respond(
            "what_if.html", request, {"policy": form.get("policy", ""), **context}, 409 if context["failure"] else 200
        )

    def _present(self) -> str:
        file = self._settings.policy_file
        return "version: 1\nrules: []\n" if file is None else read_file(file).decode(errors="replace")

    def _replayed(self, policy: str, days: str, words: str) -> dict[str, Any]:
        if days not in DAYS:
            raise InvalidOption(f"{days[:20]!r} days", expected=f"one of {', '.join(DAYS)}")
        rows, _ = queries.tables(self._model, queries.Asked.of({"q": words}), MOST_TABLES + 1)
        rows = [row for row in rows if row["uid"]]
        if not 0 < len(rows) <= MOST_TABLES:
            raise InvalidOption(f"{len(rows) or 'no'} tables", expected=f"1 to {MOST_TABLES}", remedy="change the words")
        if not self._guard.acquire(blocking=False):
            raise InvalidOption("another what-if runs", expected="one at a time", remedy="try again when it has ended")
        try:
            since = (self._clock.now() - timedelta(days=int(days))).isoformat(timespec="milliseconds")
            return drawn(_ran(policy, since, [row["base_path"] for row in rows]), {row["base_path"]: row for row in rows})
        finally:
            self._guard.release()


def _ran(policy: str, since: str, base_paths: list[str]) -> dict[str, Any]:
    """Run `tideline policy test`, and return its document. Raises `InvalidOption` with what it says."""
    with tempfile.TemporaryDirectory(prefix="tideline-what-if-") as folder:
        file = Path(folder) / "policy.yaml"
        file.write_text(policy)
        tables = [f"--tables={path}" for path in base_paths]
        program = [sys.executable, "-m", "tideline_cli.policy_program"]
        command = [*program, "test", str(file), f"--since={since}", "--json", *tables]
        try:
            done = subprocess.run(  # noqa: S603 - a command of this package
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=WAIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            text = f"the replay did not end within {WAIT_S:.0f} s"
            raise InvalidOption(
                text, expected="fewer tables or days", remedy="choose fewer, or use tideline policy test"
            ) from error
    try:
        return dict(json.loads(done.stdout))
    except ValueError as error:
        said = done.stderr.replace(str(file), "the policy").strip()
        raise InvalidOption(said or f"exit code {done.returncode}", expected="a policy that can be replayed") from error


def drawn(found: Mapping[str, Any], rows: Mapping[str, Row]) -> dict[str, Any]:
    """Return the document of a replay with its tables, those of most bytes first, and charts beside what happened."""
    tables = [{**one, "row": rows.get(one["base_path"])} for one in found["tables"]]
    tables.sort(key=lambda one: -max(one["bytes_rewritten"], one["recorded_bytes"]))

    def chart(then: str, instead: str, *, sizes: bool = False) -> charts.BarChart:
        values: list[float] = []
        titles: list[str] = []
        for one in tables[:DRAWN]:
            name = one["base_path"].rpartition("/")[2]
            values += [one[then], one[instead], 0]
            shown = [bytes_text(one[key]) if sizes else f"{one[key]:,}" for key in (then, instead)]
            titles += [f"{name}: {shown[0]} happened", f"{name}: {shown[1]} under this policy", ""]
        looks = {at: ("f-ink", "m-service")[at % 3] for at in range(len(values)) if at % 3 < 2}
        return charts.bars(values, titles, looks=looks, sizes=sizes)

    return {
        **found,
        "tables": tables,
        "recorded_jobs": sum(one["recorded_jobs"] for one in tables),
        "recorded_bytes": sum(one["recorded_bytes"] for one in tables),
        "jobs_chart": chart("recorded_jobs", "jobs"),
        "bytes_chart": chart("recorded_bytes", "bytes_rewritten", sizes=True),
    }


def _check_operator(request: Request) -> None:
    person = person_of(request)
    if person is None or not person.is_operator:
        raise HTTPException(403, "Only operators can replay the past: it takes the processor of the console's machine.")
