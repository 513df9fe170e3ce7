"""The entry point of `tideline-catalog`."""

import tideline_runtime.requirement  # noqa: F401 isort: skip - first: it names the extra

from tideline_catalog.registering import CatalogService
from tideline_catalog.settings import CatalogSettings
from tideline_runtime.lifecycle import entry_point

main = entry_point(CatalogService, CatalogSettings)

if __name__ == "__main__":
    main()
