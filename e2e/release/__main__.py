"""`python -m e2e.release [service] [spark] [--without-images] [--folder dist]`. `make release` runs it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from e2e.cluster.cluster import step
from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.images.image import IMAGES, REPOSITORY_ROOT
from e2e.release import artifacts, trial

Names = Annotated[list[str] | None, typer.Argument(help="Images: service, spark. Both by default.")]
Folder = Annotated[Path, typer.Option(help="Folder of the release. What is in it is deleted.")]
Without = Annotated[bool, typer.Option("--without-images", help="Leave the images out, where none can be built.")]


def release(names: Names = None, folder: Folder = REPOSITORY_ROOT / "dist", *, without_images: Without = False) -> None:
    """Build a release of the commit that is checked out, and try it."""
    folders = Folders.from_environment()
    images = [] if without_images else [IMAGES[name] for name in names or IMAGES]
    artifacts.refuse_uncommitted_changes()
    with tempfile.TemporaryDirectory(prefix="tideline-release-") as scratch:
        environment = Path(scratch) / "environment"
        artifacts.empty(folder)
        with step("wheel and chart"):
            wheel = artifacts.build_wheel(folder)
            chart = artifacts.package_chart(folders, folder)
        with step("images"):
            artifacts.add_images(folders, images, folder)
        with step("the wheel with all extras in an empty environment"):
            python = artifacts.install(wheel, environment, "all")
        with step("bill of materials"):
            artifacts.write_bill(python, Path(scratch) / "tools", wheel)
        artifacts.write_checksums(folder)
        with step("trial"):
            trial.try_checksums(folder)
            trial.try_wheel(wheel, python, Path(scratch))
            trial.try_chart(folders, chart)
            trial.try_images(folders, folder)
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:>12,} {path.name}")


def main() -> None:
    """Run the command; a ClusterError ends it with one line."""
    try:
        typer.run(release)
    except ClusterError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
