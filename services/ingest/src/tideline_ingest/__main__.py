"""The entry point of `tideline-ingest`."""

import tideline_runtime.requirement  # noqa: F401 isort: skip - first: it names the extra

from tideline_ingest.settings import IngestSettings
from tideline_ingest.several_tables import ingest_service
from tideline_runtime.lifecycle import entry_point

main = entry_point(ingest_service, IngestSettings)

if __name__ == "__main__":
    main()
