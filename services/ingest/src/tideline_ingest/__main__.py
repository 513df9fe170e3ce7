"""The entry point of `tideline-ingest`."""

import sys

import tideline_runtime.requirement  # noqa: F401 isort: skip - first: it names the extra

from tideline_ingest.ingestion import IngestService
from tideline_ingest.settings import IngestSettings
from tideline_runtime.lifecycle import run_service


def main() -> None:
    """Run the service until it is asked to stop."""
    sys.exit(run_service(IngestService, IngestSettings))


if __name__ == "__main__":
    main()
