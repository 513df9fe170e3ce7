"""The run: tables, writers and two instances of each service on real servers.

Policies that change, kills, and the removal of causes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from e2e.fleet.servers import LAKE, Servers, running_servers
from tests.fleet import checks, taking_over
from tests.fleet.causes import Causes
from tests.fleet.hudi_tables import HudiJobs, hudi_tables, running_jobs
from tests.fleet.instances import LEASED, LETTERS, SERVICES, SHARDS, Instances, Killable, Place, wait_until
from tests.fleet.policies import Phase, Rules, closed_window, next_window, open_window, replace
from tests.fleet.tables import FRUGAL, PAUSED, Member, create, members
from tests.fleet.writer import WRITERS, Assignment, Line, read_ledger
from tests.platform.processes import processes_that_name
from tests.real.notifications import TOPIC
from tests.real.redis import running_redis

from tideline_planner.metrics import CHANGES

LOOPBACK = "127.0.0.1"
WITH_POLICIES = ("mirror", "planner", "launcher", "cleaner")
FIRST, SECOND = LETTERS
OUTAGE_LIMIT_S = 180.0


@dataclass(frozen=True)
class Size:
    """How large a run is."""

    tables: int = 12
    rounds: int = 4
    """Rounds of each writer at least; in each it writes half of the tables."""
    start_limit_s: float = 300.0
    rest_limit_s: float = 600.0
    """Longest time after the last commit until nothing is left to do."""
    unmerged_log_age_s: float = 150.0
    """The objective for tables whose services nothing holds back. The planner plans at four fifths of it; in the last fifth a plan
    waits for an executor and runs."""
    hudi_tables: int = 0
    """Tables that jobs of Apache Hudi write."""
    timed_window_s: float = 0.0
    """Seconds after the start of the services from which on the window of the group `timed` opens; 0: it has no window."""
    polls: bool = True
    """Whether the mirror looks at tables of which nobody told: else MinIO notifies of its tables, writers hint at the others."""


@dataclass
class Run:
    """What a run did and saw."""

    size: Size
    folder: Path
    tables: list[Member]
    place: Place
    rules: Rules
    causes: Causes
    assignment: Assignment
    servers: Servers
    instances: Instances
    hudi: HudiJobs
    writers: list[Killable] = field(default_factory=list)
    in_force: list[datetime] = field(default_factory=list)
    """When the policies of each phase were in force in all instances."""
    took_s: dict[str, float] = field(default_factory=dict)
    statuses: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)
    say: Callable[[str], None] = lambda _: None

    def note(self, what: str, took_s: float) -> None:
        self.took_s[what] = took_s
        self.say(f"{time.monotonic() - self.began_s:7.1f} s  {what}: {took_s:.1f} s")

    def lines(self) -> dict[int, list[Line]]:
        """Return the acknowledged commits of each writer."""
        return {writer: read_ledger(self.assignment.ledger(writer)) for writer in range(WRITERS)}

    def caused(self) -> dict[str, str]:
        return {kind: self.causes.place(kind) for kind in self.causes.kinds}


@contextmanager
def performed(
    size: Size, folder: Path, say: Callable[[str], None] = lambda _: None, show: Callable[[str], None] | None = None
) -> Iterator[Run]:
    """Run the fleet from empty servers to its rest, and yield what was seen. The servers run until the end of the context.

    `show` gets what `tideline status` prints for a person at the end.
    """
    with ExitStack() as stack:
        began_s = time.monotonic()
        servers = stack.enter_context(running_servers(LOOPBACK, folder / "servers", "minio", notifies=not size.polls))
        leases = stack.enter_context(running_redis())
        stack.enter_context(patch.dict(os.environ, {**servers.store.settings, "AWS_ALLOW_HTTP": "true"}))
        hudi = stack.enter_context(running_jobs(hudi_tables(size.hudi_tables, folder / "hudi")))
        run = _prepared(size, folder, servers, leases.url, hudi)
        run.say, run.began_s = say, began_s
        run.note("servers", time.monotonic() - began_s)
        stack.callback(_kill, run)
        _make(run)
        _start(run)
        _see_findings(run)
        run.wrong += taking_over.observed(hudi, run.instances)
        run.wrong += taking_over.take_over(hudi, run.instances, run.note)
        _change_policies(run)
        _lose_instances(run)
        _lose_locks(run)
        _remove_causes(run)
        _rest(run)
        if show is not None:
            show(_command(run, "status", *run.place.tables, "--settings", str(run.place.settings(FIRST))))
        run.wrong += taking_over.give_back(hudi, run.instances, run.note)
        _stop(run)
        yield run


def _prepared(size: Size, folder: Path, servers: Servers, lease_store: str, hudi: HudiJobs) -> Run:
    disk, store = f"file:{folder / 'lake'}", f"s3://{LAKE}/fleet"
    tables = members(size.tables, disk, store)
    causes = Causes(folder / "special", folder / "awaited")
    patterns = (f"{disk}/*/*", f"{store}/*/*", f"file:{causes.folder}/*", f"file:{causes.awaited}/*")
    if size.hudi_tables:  # a pattern without tables is a finding
        patterns = (*patterns, f"file:{folder}/hudi/*")
    told_by = "" if size.polls else f"{servers.kafka.url}/{TOPIC}"
    place = Place(folder, patterns, servers.kafka.url, servers.redis.url, lease_store, told_by)
    rules = Rules((disk, store), f"file:{causes.folder}", f"file:{folder}/hudi", size.unmerged_log_age_s)
    ledgers = folder / "ledgers"
    for made in (ledgers, causes.folder, causes.awaited):
        made.mkdir(parents=True)
    options = {m.base_path: m.kind.options for m in tables}
    assignment = Assignment(str(ledgers), servers.redis.url, size.rounds, options, "" if size.polls else servers.kafka.url)
    return Run(size, folder, tables, place, rules, causes, assignment, servers, Instances(place), hudi)


def _make(run: Run) -> None:
    began_s = time.monotonic()
    for member in run.tables:
        create(member.base_path, member.kind, member.version)
    run.note(f"{len(run.tables)} tables", time.monotonic() - began_s)
    began_s = time.monotonic()
    run.causes.make()
    run.note("causes of findings", time.monotonic() - began_s)
    began_s = time.monotonic()
    run.hudi.round()
    run.note(f"{len(run.hudi.tables)} tables of Apache Hudi", time.monotonic() - began_s)


def _start(run: Run) -> None:
    now = datetime.now(UTC)
    timed = next_window(now, run.size.timed_window_s) if run.size.timed_window_s else None
    run.rules.write(run.place.policy_file, Phase(closed_window(now), open_window(now), timed), now)
    run.place.write_settings()
    run.instances.start_all()
    run.hudi.start()
    for writer in range(WRITERS):
        run.writers.append(_writer(run, writer))

    def is_shared_out() -> bool:
        held = [run.instances.metric(s, letter, "tideline_runtime_shards_held") for s in LEASED for letter in LETTERS]
        return all(held) and sum(value or 0 for value in held) == SHARDS * len(LEASED)

    run.note(
        "all instances have shards", wait_until("all instances have shards", is_shared_out, run.instances, run.size.start_limit_s)
    )
    run.in_force.append(datetime.now(UTC))


def _writer(run: Run, writer: int) -> Killable:
    command = [sys.executable, "-m", "tests.fleet.writer", str(writer), run.assignment.to_json()]
    return Killable(f"writer-{writer}", command, run.place.logs / f"writer-{writer}.log")


def _see_findings(run: Run) -> None:
    """Wait until the fleet API, the metrics and `tideline status` show each finding that was caused, and the pause."""
    caused, instances = run.caused(), run.instances

    def are_served() -> bool:
        served = kinds_by_place(instances.documents())
        return all(kind in served.get(_key(place), ()) for kind, place in caused.items())

    run.note("API shows the findings", wait_until("the API shows the findings", are_served, instances, run.size.start_limit_s))

    def are_counted() -> bool:
        return all(instances.total("planner", "tideline_planner_findings", kind=kind) >= 1 for kind in caused)

    run.note("metrics show them", wait_until("metrics show the findings", are_counted, instances, run.size.start_limit_s))
    began_s = time.monotonic()
    documents = run.statuses["with causes"] = status(run)
    run.note("tideline status", time.monotonic() - began_s)
    shown = kinds_by_place(documents)
    run.wrong += [f"status does not show {k} of {p}" for k, p in caused.items() if k not in shown.get(_key(p), ())]
    paused = {m.base_path for m in run.tables if m.group == PAUSED}
    run.wrong += [
        f"{d['base_path']} is paused, and {name} is {s['outcome']}: {s['reason']}"
        for d in documents
        if d["base_path"] in paused
        for name, s in d["services"].items()
        if name in ("clustering", "clean") and s["outcome"] != "held"
    ]


def _change_policies(run: Run) -> None:
    """A file that is not valid is refused by all instances; the next one opens one window and closes another."""
    instances = run.instances
    kept = run.place.policy_file.read_text()
    replace(run.place.policy_file, kept.replace("bytes_per_day", "bytes_a_day"))

    def is_refused() -> bool:
        return all(instances.metric(s, letter, "tideline_runtime_policy_valid") == 0 for s in WITH_POLICIES for letter in LETTERS)

    run.note("invalid policies refused", wait_until("invalid policies are refused", is_refused, instances, run.size.start_limit_s))
    now, (_, before) = datetime.now(UTC), run.rules.phases[-1]
    _put_in_force(run, Phase(open_window(now), closed_window(now), before.timed, hudi_mode="services"), now)


def _put_in_force(run: Run, phase: Phase, now: datetime) -> None:
    instances, name = run.instances, "tideline_runtime_policy_reloads_total"

    def reads() -> list[float]:
        return [instances.metric(s, letter, name, outcome="read") or 0.0 for s in WITH_POLICIES for letter in LETTERS]

    before = reads()
    run.rules.write(run.place.policy_file, phase, now)

    def are_read() -> bool:
        return all(later > earlier for earlier, later in zip(before, reads(), strict=True))

    run.note("new policies in force", wait_until("new policies are in force", are_read, instances, run.size.start_limit_s))
    run.in_force.append(datetime.now(UTC))


def _lose_instances(run: Run) -> None:
    """Kill one instance of each service and a writer; the shards move to the other instance, and back when it is started again."""
    instances = run.instances
    for service in LEASED:
        instances.kill(service, FIRST)

    def have_moved() -> bool:
        return all(instances.metric(service, SECOND, "tideline_runtime_shards_held") == SHARDS for service in LEASED)

    run.note("shards of the killed moved", wait_until("shards moved", have_moved, instances, run.size.start_limit_s))
    run.writers[0].kill()
    run.writers[0] = _writer(run, 0)
    for service in SERVICES:
        if service not in LEASED:
            instances.kill(service, FIRST)
        instances.start(service, FIRST)

    def have_returned() -> bool:
        held = {s: [instances.metric(s, letter, "tideline_runtime_shards_held") or 0 for letter in LETTERS] for s in LEASED}
        static = [instances.url(service, FIRST) for service in SERVICES if service not in LEASED]
        return all(all(found) and sum(found) == SHARDS for found in held.values()) and all(static)

    run.note("shards divided again", wait_until("shards are divided again", have_returned, instances, run.size.start_limit_s))
    instances.end("mirror", SECOND)
    instances.start("mirror", SECOND)


def _lose_locks(run: Run) -> None:
    """Stop the Redis with the locks until the planners show it, and start it again, empty."""
    servers, instances = run.servers, run.instances
    count = "tideline_planner_findings"
    servers.redis.stop()
    try:
        shown = lambda: instances.total("planner", count, kind="locks") > 0  # noqa: E731
        run.note("lost locks show", wait_until("lost locks are a finding", shown, instances, OUTAGE_LIMIT_S))
        documents = status(run, "--locks", servers.redis.url)
        run.wrong += [] if any("locks" in kinds for kinds in kinds_by_place(documents).values()) else ["status shows no lost locks"]
    finally:
        servers.redis.start()
    cleared = lambda: instances.total("planner", count, kind="locks") == 0  # noqa: E731
    run.note("lost locks cleared", wait_until("lost locks are cleared", cleared, instances, OUTAGE_LIMIT_S))


def _remove_causes(run: Run) -> None:
    now, (_, before) = datetime.now(UTC), run.rules.phases[-1]
    if before.timed is not None and before.timed.closes > now:
        # What the window allows must be seen to begin and to end with it.
        closes = before.timed.closes
        wait_until("the window closes", lambda: datetime.now(UTC) > closes, run.instances, 300.0)
        now = datetime.now(UTC)
    if any(member.group == FRUGAL for member in run.tables):
        # Writers go on until the end, so that a budget is reached, however slow the machine is.
        is_held = lambda: run.instances.total("planner", CHANGES.name, verdict="budget") > 0  # noqa: E731
        run.note("a budget is reached", wait_until("a budget is reached", is_held, run.instances, _budget_limit_s(len(run.tables))))
        now = datetime.now(UTC)
    # A clustering of partitions that are written would end jobs, so these tables are clustered when their jobs pause.
    run.hudi.stop()
    now = datetime.now(UTC)
    run.causes.remove()
    _put_in_force(run, Phase(None, None, None, is_frugal=False, is_paused=False, is_cured=True, hudi_mode="services"), now)
    run.causes.retry()


def _budget_limit_s(tables: int) -> float:
    """Return the longest time until a budget is reached: a few services of each table, which the executors run in turn."""
    return 300.0 + 6.0 * tables


def _rest(run: Run) -> None:
    """Wait for the writers, and then until no table has a finding, a pending plan or anything due."""
    Path(run.assignment.folder, "enough").touch()
    ended = lambda: all(writer.exit_code is not None for writer in run.writers)  # noqa: E731
    run.note("writers ended", wait_until("writers end", ended, run.instances, 600.0))
    for writer in run.writers:
        code = writer.end()
        assert code == 0, f"{writer.name} ended with {code}: {writer.log.read_text()[-3000:]}"
    left: list[str] = []

    def is_at_rest() -> bool:
        documents = run.instances.documents()
        left[:] = checks.unfinished(documents)
        known = {str(document["base_path"]) for document in documents}
        left.extend(f"no planner knows {m.base_path}" for m in run.tables if m.base_path not in known)
        return not left

    try:
        took_s = wait_until("nothing is left to do", is_at_rest, run.instances, run.size.rest_limit_s, 1.0)
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *left[:20], *_log_lines(run, left)])) from None
    run.note("nothing is left to do", took_s)
    run.statuses["at rest"] = status(run)
    run.wrong += checks.unfinished(run.statuses["at rest"])
    for kind in run.causes.kinds:
        total = run.instances.total("planner", "tideline_planner_findings", kind=kind)
        run.wrong += [f"the metric of {kind} is {total}"] if total else []


def _log_lines(run: Run, left: Sequence[str], most: int = 20) -> list[str]:
    """Return the last lines that the planners and cleaners logged about the tables that `left` begins with."""
    names = {Path(text.partition(": ")[0]).name for text in left}
    found = []
    for path in sorted(run.place.logs.glob("*.log")):
        if path.name.startswith(("planner", "cleaner")):
            lines = [line for line in path.read_text().splitlines() if any(name in line for name in names)]
            found += [f"{path.stem}: {line[:500]}" for line in lines[-most:]]
    return found


def _stop(run: Run) -> None:
    began_s = time.monotonic()
    run.instances.end_all()
    run.note("instances stopped", time.monotonic() - began_s)
    run.wrong += [f"{name} ended with {code}" for name, code in run.instances.codes.items() if code != 0]
    run.wrong += [f"left behind: {command}" for command in processes_that_name(str(run.place.settings(FIRST).parent / "settings"))]


def _kill(run: Run) -> None:
    for process in run.writers:
        if process.exit_code is None:
            process.kill()
    run.instances.kill_all()


def status(run: Run, *more: str) -> list[dict[str, Any]]:
    """Return what `tideline status --json` prints."""
    text = _command(run, "status", *run.place.tables, "--settings", str(run.place.settings(FIRST)), "--json", *more)
    return json.loads(text)["tables"]


def _command(run: Run, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tideline_cli.main", *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def kinds_by_place(documents: list[dict[str, Any]] | list[dict[str, object]]) -> Mapping[str, set[str]]:
    """Return the kinds of findings by the table or the pattern that they are about."""
    found: dict[str, set[str]] = {}
    for document in documents:
        kinds: Any = document["findings"]
        found.setdefault(_key(str(document["base_path"])), set()).update(finding["kind"] for finding in kinds)
    return found


def _key(place: str) -> str:
    return place.removeprefix("file:")
