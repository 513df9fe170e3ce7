"""`python -m e2e.fleet`: bring the cluster up, run the story, take everything down again."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from e2e.cluster.addresses import POD_GATEWAY
from e2e.cluster.cluster import Cluster, modules
from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.cluster.needs import missing_for_a_cluster
from e2e.cluster.packages import IMAGE_PROGRAMS, NODE_PROGRAMS
from e2e.cluster.programs import ensure_programs
from e2e.fleet import evidence, short
from e2e.fleet.pods import Journal
from e2e.fleet.report import Report
from e2e.fleet.servers import running_servers
from e2e.fleet.session import Session
from e2e.fleet.story import ROUNDS, Story
from e2e.images.build import ensure_archives, load_archives
from e2e.images.image import IMAGES

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def fleet(
    *,
    faults: Annotated[bool, typer.Option(help="With the faults; without them one round of writes.")] = True,
    rounds: Annotated[
        list[str] | None, typer.Option("--round", help="Only this round of faults, by its name in the output; may be repeated.")
    ] = None,
    hudi: Annotated[bool, typer.Option(help="With Apache Hudi as a reader of the tables.")] = True,
    short_form: Annotated[bool, typer.Option("--short", help="One table, one clustering, one driver killed.")] = False,
    if_possible: Annotated[
        bool, typer.Option(help="Where this machine cannot run a node, say in one line what is missing, and end with success.")
    ] = False,
    build_only: Annotated[bool, typer.Option(help="Build the cluster's programs and the images, and run nothing.")] = False,
    keep: Annotated[bool, typer.Option(help="Leave the cluster up at the end.")] = False,
    store: Annotated[str, typer.Option(help="Object store: minio, or seaweedfs, which needs no Go.")] = "minio",
) -> None:
    """Run a release of the chart end to end."""
    folders = Folders.from_environment()
    if if_possible and (missing := missing_for_a_cluster(folders, {**NODE_PROGRAMS, **IMAGE_PROGRAMS})):
        print(f"end-to-end run left out: this machine cannot run a node: it lacks {', '.join(missing)}")
        return
    if build_only:
        ensure_programs(folders, modules(with_dns=not short_form))
        ensure_archives(folders, list(IMAGES.values()))
        return
    # What the tests' servers download and build is kept in the same cache.
    os.environ["TIDELINE_CACHE"] = str(folders.cache)

    def run(session: Session) -> None:
        if short_form:
            short.run(session)
        else:
            Story(session, chosen=tuple(rounds or ())).run(with_faults=faults, by_hudi=hudi)

    if unknown := sorted(set(rounds or ()) - {known.name for known in ROUNDS}):
        raise ClusterError(f"found no round {', '.join(unknown)}; expected names among {', '.join(known.name for known in ROUNDS)}")
    report, cluster, pods = Report(), Cluster(folders), list[str]()
    try:
        _bring_up(folders, report, cluster, with_dns=not short_form)
        with report.step("load the images"):
            load_archives(folders, list(IMAGES.values()))
        _run(folders, report, pods, store, run)
    finally:
        if not keep:
            with report.step("cluster down"):
                cluster.down()
        print(report.summary(pods), flush=True)
    print("end-to-end run passed", flush=True)


def _bring_up(folders: Folders, report: Report, cluster: Cluster, *, with_dns: bool) -> None:
    """Build the images while the cluster's programs are built and started. Raises the first error when both have ended."""
    with ThreadPoolExecutor(1) as pool, report.step("images, and beside them the cluster"):
        images = pool.submit(ensure_archives, folders, list(IMAGES.values()))
        with report.step("cluster up"):
            cluster.up(with_dns=with_dns)
        images.result()


def _run(folders: Folders, report: Report, pods: list[str], store: str, run: Callable[[Session], None]) -> None:
    """Run a story beside its servers; `pods` gets a line for each pod that was seen."""
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tideline-e2e-")))
        with report.step("Kafka, Redis, object store"):
            servers = stack.enter_context(running_servers(POD_GATEWAY, work, store))
        journal = stack.enter_context(Journal(folders))
        try:
            run(Session(folders, servers, report, journal, work))
        except BaseException:
            report.say(f"failed; logs and descriptions of the pods are kept in {evidence.keep(folders)}")
            raise
        finally:
            pods += [pod.line() for pod in journal.pods()]


def main() -> None:
    """Run, or end with one line."""
    # So that a run that is stopped takes down what it started, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        app()
    except ClusterError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
