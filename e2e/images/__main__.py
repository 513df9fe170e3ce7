"""`python -m e2e.images build|load [service] [spark]`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.images.build import build_archives, load_archives
from e2e.images.image import IMAGES, Image

app = typer.Typer(name="python -m e2e.images", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)

Names = Annotated[list[str] | None, typer.Argument(help="Images: service, spark. Both by default.")]


@app.command()
def build(names: Names = None) -> None:
    """Build images and write their archives and bills of materials into the cache."""
    build_archives(Folders.from_environment(), _chosen(names))


@app.command()
def load(names: Names = None) -> None:
    """Load archives into the running node."""
    load_archives(Folders.from_environment(), _chosen(names))


def main() -> None:
    """Run one command; a ClusterError ends it with one line."""
    try:
        app()
    except ClusterError as error:
        sys.exit(f"error: {error}")


def _chosen(names: list[str] | None) -> list[Image]:
    unknown = sorted(set(names or ()) - IMAGES.keys())
    if unknown:
        raise ClusterError(f"found {', '.join(unknown)}; expected names among {', '.join(IMAGES)}")
    return [IMAGES[name] for name in names or IMAGES]


if __name__ == "__main__":
    main()
