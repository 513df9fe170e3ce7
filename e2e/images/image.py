"""The images by name, and where their archives lie."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.folders import Folders

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
REGISTRY = "localhost"
"""No node can pull these images: a missing one is an error at once."""


@dataclass(frozen=True)
class Image:
    """An image of this repository."""

    name: str

    @property
    def reference(self) -> str:
        """The whole name with its tag, as the node knows the image."""
        return f"{REGISTRY}/tideline/{self.name}:{version()}"

    @property
    def dockerfile(self) -> Path:
        return REPOSITORY_ROOT / "docker" / f"{self.name}.Dockerfile"

    @property
    def ignore_file(self) -> Path:
        return self.dockerfile.with_name(self.dockerfile.name + ".dockerignore")

    def archive(self, folders: Folders) -> Path:
        """The OCI archive."""
        return folders.images / f"tideline-{self.name}-{version()}.tar"

    def bill_of_materials(self, folders: Folders) -> Path:
        """The CycloneDX bill of materials, the same file as in the image."""
        return self.archive(folders).with_suffix(".bom.json")


SERVICE = Image("service")
SPARK = Image("spark")
IMAGES = {image.name: image for image in (SERVICE, SPARK)}


def version() -> str:
    """Return the version of the workspace."""
    content = tomllib.loads((REPOSITORY_ROOT / "pyproject.toml").read_text())
    return str(content["project"]["version"])
