"""The entry point of `tideline-lock-service`."""

import tideline_runtime.requirement  # noqa: F401 isort: skip - first: it names the extra

from tideline_lock_service.service import LockService
from tideline_lock_service.settings import LockServiceSettings
from tideline_runtime.lifecycle import entry_point

main = entry_point(LockService, LockServiceSettings)

if __name__ == "__main__":
    main()
