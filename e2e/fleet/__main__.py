"""`python -m e2e.fleet`: bring the cluster up, run the story, take everything down again."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from e2e.cluster.addresses import POD_GATEWAY
from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.fleet import evidence
from e2e.fleet.pods import Journal
from e2e.fleet.report import Report
from e2e.fleet.servers import running_servers
from e2e.fleet.story import Story
from e2e.images.build import ensure_archives, load_archives
from e2e.images.image import IMAGES

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def fleet(
    *,
    faults: Annotated[bool, typer.Option(help="With the faults; without them one round of writes.")] = True,
    keep: Annotated[bool, typer.Option(help="Leave the cluster up at the end.")] = False,
    store: Annotated[str, typer.Option(help="Object store: minio, or seaweedfs, which needs no Go.")] = "minio",
) -> None:
    """Run a release of the chart end to end."""
    folders = Folders.from_environment()
    # What the tests' servers download and build is kept in the same cache.
    os.environ["TIDELINE_CACHE"] = str(folders.cache)
    report, cluster, pods = Report(), Cluster(folders), list[str]()
    try:
        with report.step("images"):
            ensure_archives(folders, list(IMAGES.values()))
        with report.step("cluster up"):
            cluster.up()
        with report.step("load the images"):
            load_archives(folders, list(IMAGES.values()))
        _run(folders, report, pods, store, with_faults=faults)
    finally:
        if not keep:
            with report.step("cluster down"):
                cluster.down()
        print(report.summary(pods), flush=True)
    print("end-to-end run passed", flush=True)


def _run(folders: Folders, report: Report, pods: list[str], store: str, *, with_faults: bool) -> None:
    """Run the story beside its servers; `pods` gets a line for each pod that was seen."""
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tideline-e2e-")))
        with report.step("Kafka, Redis, object store"):
            servers = stack.enter_context(running_servers(POD_GATEWAY, work, store))
        journal = stack.enter_context(Journal(folders))
        try:
            Story(folders, servers, report, journal, work).run(with_faults=with_faults)
        except BaseException:
            report.say(f"failed; logs and descriptions of the pods are kept in {evidence.keep(folders)}")
            raise
        finally:
            pods += [pod.line() for pod in journal.pods()]


def main() -> None:
    """Run, or end with one line."""
    try:
        app()
    except ClusterError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
