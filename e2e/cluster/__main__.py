"""`python -m e2e.cluster up|status|down|programs`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from e2e.cluster.cluster import Cluster, step
from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.cluster.kubectl import kubectl
from e2e.cluster.programs import ensure_programs

app = typer.Typer(name="python -m e2e.cluster", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)

Jobs = Annotated[int | None, typer.Option(min=1, help="Compilers that run at once; by default one per core.")]


@app.command()
def up(
    *,
    node: Annotated[
        bool, typer.Option(help="With a node that runs pods; without it only the control plane, which needs no root.")
    ] = True,
    jobs: Jobs = None,
) -> None:
    """Build what is missing and start what does not run."""
    cluster = Cluster(Folders.from_environment())
    cluster.up(with_node=node, jobs=jobs)
    if node:
        print(kubectl(cluster.folders, "get", "nodes", "--output=wide").strip())
    print(f"export KUBECONFIG={cluster.folders.kubeconfig} PATH={cluster.folders.bin}:$PATH")


@app.command()
def status(*, as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False) -> None:
    """Say what runs. Exit code 0: the whole cluster is up, 3: it is not."""
    found = Cluster(Folders.from_environment()).status()
    if as_json:
        print(json.dumps({"processes": found.processes, "answers": found.is_answering, "remains": found.remains}))
    else:
        for name, pid in found.processes.items():
            print(f"{name:24} {f'runs as process {pid}' if pid else 'does not run'}")
        print(f"{'API':24} {'answers' if found.is_answering else 'does not answer'}")
        if not any(found.processes.values()):
            print("\n".join(f"{'left':24} {text}" for text in found.remains) or "nothing is left of a node")
    if not found.is_up:
        raise typer.Exit(3)


@app.command()
def down() -> None:
    """Stop all that was started and take back what the node changed in this machine."""
    Cluster(Folders.from_environment()).down()
    print("down")


@app.command()
def programs(*, jobs: Jobs = None) -> None:
    """Build the cluster's programs and start nothing."""
    folders = Folders.from_environment()
    with step("programs"):
        ensure_programs(folders, jobs=jobs)
    print(folders.bin)


def main() -> None:
    """Run one command; a ClusterError ends it with one line."""
    try:
        app()
    except ClusterError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
