"""The entry point of `tideline-mirror`."""

import tideline_runtime.requirement  # noqa: F401 isort: skip - first: it names the extra

from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_runtime.lifecycle import entry_point

main = entry_point(MirrorService, MirrorSettings)

if __name__ == "__main__":
    main()
