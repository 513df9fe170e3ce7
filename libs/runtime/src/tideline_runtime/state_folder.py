"""The folder for local files of the services. Only the user who runs the services can read the files that they create there."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from tideline_runtime.errors import InvalidSetting
from tideline_runtime.settings import ServiceSettings

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600


def open_log_file(path: Path) -> BinaryIO:
    """Open a log file for appending. An absent file and its folder are created, accessible for this user only. Raises `OSError`."""
    path.parent.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    return os.fdopen(os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, PRIVATE_FILE), "ab")


def is_readable_by_others(path: Path) -> bool:
    """Return whether users who are neither the owner nor in the group of the file can read it; False if that is unknown."""
    try:
        place = path.resolve()
        return bool(place.stat().st_mode & stat.S_IROTH) and all(p.stat().st_mode & stat.S_IXOTH for p in place.parents)
    except OSError:
        return False


def make_state_folder(settings: ServiceSettings) -> Path:
    """Return the state folder. An absent folder is created, accessible for this user only; the mode of an existing one stays.

    Raises `InvalidSetting` if this user cannot write to it.
    """
    folder = settings.state_folder
    try:
        folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
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
        remedy="set state_folder to another folder, or change the permissions of this one",
    )
