"""The folder for local files of the services. Only the user who runs them can read what they create there."""

from __future__ import annotations

import os
from pathlib import Path

from tideline_runtime.errors import InvalidSetting
from tideline_runtime.settings import ServiceSettings


def make_state_folder(settings: ServiceSettings) -> Path:
    """Create the state folder if it is absent, and return it. Raises `InvalidSetting` if this user cannot write to it."""
    folder = settings.state_folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found = f"setting 'state_folder' is '{folder}': {error.strerror}"
    else:
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
        found = f"setting 'state_folder' is '{folder}': not writable"
    raise InvalidSetting(
        f"{found} ({settings.origin('state_folder')})",
        name="state_folder",
        origin=settings.origin("state_folder"),
        expected="a folder that this user can write to",
    )
