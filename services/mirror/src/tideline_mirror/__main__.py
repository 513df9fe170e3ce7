"""The entry point of `tideline-mirror`."""

import sys

import tideline_runtime.requirement  # noqa: F401 isort: skip - first: it names the extra

from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_runtime.lifecycle import run_service


def main() -> None:
    """Run the service until it is asked to stop."""
    sys.exit(run_service(MirrorService, MirrorSettings))


if __name__ == "__main__":
    main()
