"""Runs services on this machine under one supervisor: all for `tideline up`, those that only read for `tideline observe`.

`TIDELINE_*` variables give the settings.
"""

from __future__ import annotations

import tideline_runtime.requirement  # noqa: F401 isort: skip - first: it names the extra

import contextlib
import importlib.util
import os
import sys
import threading
from pathlib import Path

from tideline_cli.failure import report_failure
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.logging import logs
from tideline_runtime.members import PLATFORM, PREFIX, import_declarations
from tideline_runtime.setting_checks import check_settings
from tideline_runtime.setting_sources import FILE_VARIABLE
from tideline_runtime.settings import ServiceSettings, declared_settings
from tideline_runtime.state_folder import make_state_folder
from tideline_runtime.supervisor import Child, Supervisor
from tideline_table.errors import InvalidOption, TidelineError

_KILL_GRACE_S = 5.0
OBSERVE = "--observe"
_OBSERVING = ("mirror", "planner")
_WORKERS = 2
"""Resident workers of the launcher, unless the settings say others: they run small plans without a start of Spark."""
_POLICY = "version: 1\ndefaults: {mode: observe}\n"


def run_services(*, observes: bool = False) -> int:
    """Run all services until SIGTERM or SIGINT and return the exit code. Those that observe have a policy that forbids all writes.

    Before any service is started, raises `InvalidOption` for no tables, and `InvalidSetting` for settings that are not valid.
    """
    settings = ServiceSettings.load()
    if not settings.tables:
        raise InvalidOption("no tables", expected="base paths or patterns", remedy="name some, such as '/data/lake/*'")
    settings_file = os.environ.get(FILE_VARIABLE)
    arguments = ("--settings", settings_file) if settings_file else ()
    _check_services()
    policy = make_state_folder(settings) / "observe.yaml"
    names = [name for name in _services() if not observes or name in (*_OBSERVING, "console")]
    forced = {f"{PREFIX}{name}__policy_file".upper(): str(policy) for name in names} if observes else {}
    if observes:
        policy.write_text(_POLICY)
        # An action of a person runs a command, for which the policy file does not hold.
        forced[f"{PREFIX}console__actions".upper()] = "false"
    launcher = _own("launcher")
    if launcher is not None and launcher.origin("workers.count") == "default":
        forced[f"{PREFIX}launcher__workers__count".upper()] = str(_WORKERS)
    children = [Child(name, (sys.executable, "-m", f"tideline_{name}", *arguments), forced) for name in names]
    _print_address(settings.state_folder / "console.url")
    with logs("up", level=settings.log_level, log_format=settings.log_format, secrets=settings.secret_values()):
        return Supervisor(children, settings.state_folder, grace_s=settings.stop_grace_s + _KILL_GRACE_S).run()


def _services() -> tuple[str, ...]:
    """Return the services to run: the catalog service too, if it has a catalog, and the console, if what it needs is installed.

    Not the lock service where Redis or nothing keeps locks, unless it has a port for those that ask it.
    """
    needed = ("tideline_console", "authlib", "itsdangerous", "starlette", "uvicorn", "jinja2")
    has_console = all(importlib.util.find_spec(name) is not None for name in needed)
    has_catalog = bool(getattr(_own("catalog"), "url", ""))
    own = _own("lock_service")
    has_locks = own is not None and (own.http_port or str(own.locks).startswith("storage:"))
    platform = (name for name in PLATFORM if has_locks or name != "lock_service")
    return (*platform, *(("catalog",) if has_catalog else ()), *(("console",) if has_console else ()))


def _own(section: str) -> ServiceSettings | None:
    """Return the settings of a service; None if it is not installed."""
    import_declarations(f"{PREFIX}{section}", "settings")
    return next((of.load() for of in declared_settings() if of.section == section), None)


def _print_address(file: Path) -> None:
    """Print the address of the console once it has written it to its file."""
    file.unlink(missing_ok=True)

    def wait() -> None:
        never = threading.Event()
        while not never.wait(0.1):
            with contextlib.suppress(FileNotFoundError):
                if text := file.read_text().strip():
                    sys.stdout.write(f"console: {text}\n")
                    sys.stdout.flush()
                    return

    threading.Thread(target=wait, name="console-address", daemon=True).start()


def _check_services() -> None:
    """Check the settings of each service. Raises `InvalidSetting`, also if two services would listen on the same port.

    The usual cause of the latter is a shared setting `http_port`.
    """
    classes = {
        of.section: of for name in _services() if import_declarations(f"{PREFIX}{name}", "settings") for of in declared_settings()
    }
    users: dict[tuple[str, int], list[str]] = {}
    origins: dict[tuple[str, int], str] = {}
    for name in _services():
        if name in classes:
            own = classes[name].load()
            check_settings(own)
            users.setdefault((own.http_host, own.http_port), []).append(name)
            origins[own.http_host, own.http_port] = own.origin("http_port")
    for place, names in users.items():
        if place[1] and len(names) > 1:
            raise InvalidSetting(
                f"setting 'http_port' is {place[1]} for {', '.join(names)} ({origins[place]})",
                name="http_port",
                origin=origins[place],
                expected="another port for each service, or 0",
                remedy=f"set http_port in the table of each service ([{names[0]}], ...; TIDELINE_{names[0].upper()}__HTTP_PORT)",
            )


if __name__ == "__main__":
    try:
        sys.exit(run_services(observes=OBSERVE in sys.argv[1:]))
    except TidelineError as error:
        sys.exit(report_failure(error))
