"""Checks of settings beyond their declarations.

`--check` and the start of a service make the same checks; none needs a connection.
"""

from __future__ import annotations

from collections.abc import Callable

from tideline_events import check_event_log_url
from tideline_locks import OnUnreachable, check_lock_url
from tideline_locks.table_lock import check_unreachable
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.policy import read_policies
from tideline_runtime.settings import ServiceSettings
from tideline_runtime.shard_leases import check_shard_leases
from tideline_runtime.table_search import TablePattern
from tideline_table.config import LOCK_UNREACHABLE, Options
from tideline_table.errors import InvalidOption


def check_settings(settings: ServiceSettings) -> None:
    """Raise `InvalidSetting` for a pattern, a URL, shard leases or an engine option that no service could use.

    Raises `PolicyRefused` for a policy file that is not valid.
    """
    for text in settings.tables:
        TablePattern.parse(text)
    if settings.policy_file is not None:
        read_policies(settings.policy_file)
    _checked(settings, "event_log", lambda: check_event_log_url(settings.event_log))
    _checked(settings, "locks", lambda: check_lock_url(settings.locks) if settings.locks else None)
    check_shard_leases(settings)
    options = getattr(settings, "options", None)
    if options is not None:
        name = f"{settings.section}.options"
        wanted = _checked(settings, name, lambda: OnUnreachable(Options(options)[LOCK_UNREACHABLE]))
        _checked(settings, name, lambda: check_unreachable(settings.locks, wanted or OnUnreachable.WAIT))


def _checked(settings: ServiceSettings, name: str, check: Callable[[], OnUnreachable | None]) -> OnUnreachable | None:
    try:
        return check()
    except InvalidOption as error:
        origin = settings.origin(name.rpartition(".")[2])
        raise InvalidSetting(
            f"setting {name!r}: {error.found} ({origin})", name=name, origin=origin, expected=error.expected, remedy=error.remedy
        ) from error
