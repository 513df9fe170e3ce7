"""The life cycle of a service process: command line, settings, logs, health, main loop, stop.

Exit codes: 0 stopped on request (or `--check` passed), 1 failed, 2 wrong settings or policies, 3 did not stop within the grace
deadline.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from tideline_runtime.contract import Service, ServiceContext, ServiceFactory, SettingsT
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.health import Health
from tideline_runtime.http import HttpServer, is_loopback, service_app
from tideline_runtime.logging import get_logger, logs
from tideline_runtime.loop import Backoff, TickLoop
from tideline_runtime.metrics import READY, SHARED_METRICS, Metrics
from tideline_runtime.policy import Policies, read_policies
from tideline_runtime.policy.table_checks import check_fleet
from tideline_runtime.redaction import redacted_text
from tideline_runtime.running import Running, announce, running_file, withdraw
from tideline_runtime.setting_checks import check_settings
from tideline_runtime.setting_sources import FILE_VARIABLE
from tideline_runtime.setting_text import settings_toml
from tideline_runtime.settings import ServiceSettings
from tideline_runtime.signals import on_termination
from tideline_runtime.state_folder import is_readable_by_others, make_state_folder
from tideline_table.clock import Clock, SystemClock
from tideline_table.errors import InvalidOption, StorageError
from tideline_table.extras import DISTRIBUTION

EXIT_STOPPED = 0
EXIT_FAILED = 1
EXIT_SETTINGS = 2
EXIT_GRACE_EXCEEDED = 3

_log = get_logger(__name__)


def entry_point(service_factory: ServiceFactory[SettingsT], settings_class: type[SettingsT]) -> Callable[[], None]:
    """Return the `main` of a service: it does `run_service` and exits with its code."""
    return lambda: sys.exit(run_service(service_factory, settings_class))


def run_service(
    service_factory: ServiceFactory[SettingsT],
    settings_class: type[SettingsT],
    argv: Sequence[str] | None = None,
    *,
    clock: Clock | None = None,
) -> int:
    """Run the service in this process until SIGTERM or SIGINT; return the exit code. Call it from the main thread.

    `settings_class.section` is the name of the service. `argv` are the arguments without the program name (default: of this
    process): `--settings FILE`, `--check`, `--print-settings`, `--version`. Wrong settings are reported in one line on stderr.
    """
    name = settings_class.section
    assert name is not None, "settings of a service have a section"
    arguments = _arguments(name, argv)
    try:
        settings = settings_class.load(file=arguments.settings)
        if arguments.print_settings:
            sys.stdout.write(settings_toml(settings))
            return EXIT_STOPPED
        check_settings(settings)
        exposed = _exposed_secrets(settings, arguments.settings)
        if arguments.check:
            if exposed:
                sys.stderr.write(f"{name}: warning: {exposed}\n")
            return _check_tables(settings, name)
        with logs(name, level=settings.log_level, log_format=settings.log_format, secrets=settings.secret_values()):
            if exposed:
                _log.warning(exposed)
            return _run(service_factory, settings, name, clock or SystemClock())
    except InvalidOption as error:
        # A value may contain line breaks; the report must not.
        sys.stderr.write(f"{name}: {redacted_text(' '.join(str(error).split()))}\n")
        return EXIT_SETTINGS
    except StorageError as error:
        sys.stderr.write(f"{name}: {redacted_text(' '.join(str(error).split()))}\n")
        return EXIT_FAILED


def _check_tables(settings: ServiceSettings, name: str) -> int:
    """Check the settings and the policies against the tables that the settings select.

    Print the findings, and return the exit code.
    """
    policies = read_policies(settings.policy_file) if settings.policy_file is not None else Policies()
    findings = check_fleet(settings, policies)
    for finding in findings:
        kind = "" if finding.is_error else "warning: "
        sys.stderr.write(f"{name}: {kind}{redacted_text(' '.join(str(finding).split()))}\n")
    if any(finding.is_error for finding in findings):
        return EXIT_SETTINGS
    sys.stdout.write(f"{name}: the settings are valid\n")
    return EXIT_STOPPED


def _exposed_secrets(settings: ServiceSettings, named: Path | None) -> str:
    """Return a warning if all users of this machine can read a settings file that holds secrets; empty if they cannot."""
    file = named or Path(os.environ.get(FILE_VARIABLE, ""))
    secret = settings.secrets_in_file()
    if not secret or not is_readable_by_others(file):
        return ""
    return f"settings file {file} has secrets ({', '.join(secret)}) and all users of this machine can read it: chmod 600 {file}"


def _arguments(name: str, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"tideline-{name.replace('_', '-')}", allow_abbrev=False)
    parser.add_argument("--settings", type=Path, metavar="FILE", help="settings file (TOML); overrides TIDELINE_SETTINGS_FILE")
    parser.add_argument(
        "--check", action="store_true", help="check the settings, also against the tables that they select, and exit"
    )
    parser.add_argument(
        "--print-settings", action="store_true", help="print the settings with their origins, without secrets, and exit"
    )
    parser.add_argument("--version", action="version", version=version(DISTRIBUTION))
    return parser.parse_args(argv)


def _run(service_factory: ServiceFactory[SettingsT], settings: SettingsT, name: str, clock: Clock) -> int:
    context = ServiceContext(name, clock, Metrics(name, *SHARED_METRICS), Health(clock, settings.live_deadline_s))
    service = service_factory(settings, context)
    make_state_folder(settings)
    token = settings.http_token.get_secret_value() if settings.http_token else None
    if context.routes and token is None and not is_loopback(settings.http_host):
        raise InvalidSetting(
            f"setting 'http_host' is {settings.http_host!r} and 'http_token' is unset",
            name="http_token",
            origin="default",
            expected="a token, because the service accepts requests from other machines",
            remedy="set http_token, or set http_host to a loopback address",
        )
    app = service_app(name, context.health, context.metrics, routes=context.routes, token=token)
    server = HttpServer(app, settings.http_host, settings.http_port)
    is_shared = settings.shard_leases.enabled or settings.shard_count > 1
    path = running_file(settings.state_folder, context.name_of_instance(settings) if is_shared else name)
    deadline = _StopDeadline(settings.stop_grace_s, path)

    def terminate(number: signal.Signals) -> None:
        _log.info("stopping", signal=number.name)
        context.health.stopping()
        context.request_stop()
        deadline.begin()

    try:
        with on_termination(terminate), _announced(server, path, name, clock):
            return _serve(service, context, settings, deadline)
    finally:
        deadline.met()


class _StopDeadline:
    """Ends the process by force if a stop takes longer than `grace_s`."""

    def __init__(self, grace_s: float, path: Path) -> None:
        self._grace_s = grace_s
        self._path = path
        self._begun = threading.Lock()
        self._timer = threading.Timer(grace_s, self._end)
        self._timer.name, self._timer.daemon = "stop-deadline", True

    def begin(self) -> None:
        """Start the deadline; later calls do not extend it."""
        if self._begun.acquire(blocking=False):
            self._timer.start()

    def met(self) -> None:
        """Record that the stop is complete."""
        self._timer.cancel()

    def _end(self) -> None:
        _log.error("did not stop within the grace deadline, ending the process", stop_grace_s=self._grace_s)
        withdraw(self._path)
        os._exit(EXIT_GRACE_EXCEEDED)


def _serve(service: Service, context: ServiceContext, settings: ServiceSettings, deadline: _StopDeadline) -> int:
    loop = TickLoop(
        service,
        context,
        poll_interval_s=settings.poll_interval_s,
        backoff=Backoff(max_s=settings.retry_backoff_max_s),
        max_consecutive_failures=settings.max_consecutive_failures,
        live_deadline_s=settings.live_deadline_s,
    )
    code = EXIT_STOPPED
    try:
        loop.run()
    except InvalidOption:
        raise
    except Exception as error:  # noqa: BLE001 - the border of the process: logged with its traceback, reported by the exit code
        _log.critical("giving up", exc_info=error)
        code = EXIT_FAILED
    finally:
        deadline.begin()
        context.metrics.set(READY, 0)
        context.health.stopping()
        has_stopped = _stopped(service)
    code = code if has_stopped else EXIT_FAILED
    _log.info("stopped", exit_code=code)
    return code


def _stopped(service: Service) -> bool:
    try:
        service.stop()
    except Exception as error:  # noqa: BLE001 - as above
        _log.error("stop failed", exc_info=error)
        return False
    return True


@contextmanager
def _announced(server: HttpServer, path: Path, name: str, clock: Clock) -> Iterator[None]:
    try:
        server.start()
        announce(path, Running(name, os.getpid(), server.local_host, server.port, clock.now().isoformat()))
        _log.info("listening", host=server.host, port=server.port)
        yield
    finally:
        withdraw(path)
        server.stop()
