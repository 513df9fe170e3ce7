"""`tideline-ingest`."""

import sys

from tideline_ingest.service import IngestService
from tideline_ingest.settings import IngestSettings
from tideline_service.lifecycle import run_service


def main() -> None:
    """Run the service until it is asked to stop."""
    sys.exit(run_service(IngestService, IngestSettings, "ingest"))


if __name__ == "__main__":
    main()
