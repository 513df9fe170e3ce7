"""The adapter of `Applications` for Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tideline_launcher.application import Application, ApplicationSpec, End, EndKind, LaunchRefused, PlanKey
from tideline_launcher.kubernetes.api import Pod, PodApi
from tideline_launcher.kubernetes.pod_spec import COMPONENT, DRIVER, FLEET, INSTANT, SHARED, driver_pod
from tideline_launcher.kubernetes.pod_state import COLLECTED, applications_of, end_message, is_terminal
from tideline_launcher.kubernetes.pod_watch import PodWatch
from tideline_launcher.settings import KubernetesSettings
from tideline_runtime.api_server import ApiServer, ApiServerDown, ApiServerRefused, api_client, own_namespace
from tideline_runtime.errors import DependencyDown, InvalidSetting
from tideline_runtime.logging import get_logger
from tideline_runtime.redaction import url_passwords
from tideline_table.clock import Clock

_log = get_logger(__name__)
_SECTION = "launcher.kubernetes"
_POLL_S = 5.0
_FORGOTTEN_AFTER = timedelta(days=1)
"""Time after the time to live after which an ended pod is deleted although no launcher handled its end, because its table is
gone."""


class DriverPods:
    """Implements `Applications` with a driver pod per application.

    Pods outlive the launcher; the next launcher finds them by their labels.

    The constructor reads the kubeconfig and the pod template, raises `InvalidSetting`, and sends no request to the API server.
    """

    name = "kubernetes"
    poll_interval_s = _POLL_S

    def __init__(self, settings: KubernetesSettings, clock: Clock, api: PodApi | None = None) -> None:
        if not settings.image:
            raise InvalidSetting(
                "setting 'launcher.kubernetes.image' is empty",
                name="launcher.kubernetes.image",
                origin="default",
                expected="the Spark image",
            )
        self._settings = settings
        self._clock = clock
        self._template = _template(settings.pod_template)
        self._api = api or PodApi(
            ApiServer(api_client(settings.kubeconfig, _SECTION), settings.request_timeout_s),
            settings.namespace or own_namespace(_SECTION),
        )
        self._selector = f"{FLEET}={settings.fleet},{COMPONENT}={DRIVER}"
        self._watch = PodWatch(self._api, self._selector, settings.watch_timeout_s, clock)
        self._start_timeout = timedelta(seconds=settings.start_timeout_s)
        self._alive: dict[str, tuple[Application, ...]] = {}
        self._vanished: dict[str, tuple[Application, ...]] = {}
        self._collected: set[str] = set()
        self._discarded: set[str] = set()
        self._owner: dict[str, Any] | None = None

    def start(self, wake: Callable[[], None]) -> None:
        """See `Applications.start`. Reads the owner of the pods if one is set, and waits for the first list of pods."""
        if self._settings.owner and self._owner is None:
            self._owner = self._owner_reference()
        self._watch.start(wake, self._settings.request_timeout_s)

    def launch(self, spec: ApplicationSpec) -> None:
        """See `Applications.launch`."""
        if url_passwords(spec.locks) and not self._settings.locks_secret:
            raise LaunchRefused(
                "the URL of the locks holds a password, which every reader of pods could see",
                expected="setting launcher.kubernetes.locks_secret",
                remedy="put the URL into a Secret",
            )
        pod = driver_pod(spec, self._settings, self._template, self._owner)
        try:
            created = self._api.create(pod)
        except ApiServerRefused as error:
            raise LaunchRefused(error.found, remedy="see docs/design/launcher.md for the rights of the launcher") from error
        except ApiServerDown:
            # The answer may be lost after success.
            created = self._api.get(spec.name)
            if created is None:
                raise
        if created is None:
            created = self._api.get(spec.name)
        if created is None:
            raise DependencyDown(
                f"pod {spec.name} was deleted while the launcher created it", remedy="the launcher tries again at its next tick"
            )
        wanted = [(plan.key, plan.attempt) for plan in spec.plans]
        if [(a.key, a.attempt) for a in self._applications(created)] != wanted:
            shown = ", ".join(f"attempt {attempt} at plan {key.instant}" for key, attempt in wanted)
            raise LaunchRefused(
                f"pod {spec.name} exists and makes other attempts", expected=shown, remedy="delete the pod if it is not needed"
            )
        self._watch.put(created)

    def known(self) -> Sequence[Application]:
        """See `Applications.known`. A pod that was deleted before its end was handled is listed as lost."""
        pods = self._watch.pods()
        # The watch reports later that this launcher collected or deleted a pod.
        self._collected &= pods.keys()
        self._discarded &= pods.keys()
        found: dict[str, tuple[Application, ...]] = {}
        for name, pod in pods.items():
            applications = self._applications(pod)
            if applications and name not in self._discarded:
                is_collected = name in self._collected
                found[name] = tuple(replace(a, is_collected=True) for a in applications) if is_collected else applications
        for name, applications in self._alive.items():
            if name not in found and name not in self._vanished:
                self._read_missing(name, applications, found)
        self._alive = {name: applications for name, applications in found.items() if not applications[0].is_collected}
        return [a for applications in (*found.values(), *self._vanished.values()) for a in applications]

    def attempts(self, keys: Collection[PlanKey]) -> Sequence[Application]:
        """See `Applications.attempts`. Sends one request, which also lists all pods of several plans: each may run one of these."""
        instants = ",".join(sorted({SHARED, *(key.instant for key in keys)}))
        listed = self._api.list(f"{self._selector},{INSTANT} in ({instants})")
        return [a for pod in listed.items for a in self._applications(pod) if a.key in keys]

    def log_tail(self, driver: str, max_bytes: int) -> bytes:
        """See `Applications.log_tail`. If the log cannot be read, returns the last lines that the status of the pod holds."""
        try:
            return self._api.log_tail(driver, max_bytes)
        except (ApiServerRefused, DependencyDown) as error:
            _log.warning("log of a driver pod cannot be read", application=driver, reason=str(error))
        pod = self._watch.pods().get(driver)
        return end_message(pod).encode()[-max_bytes:] if pod is not None else b""

    def collect(self, driver: str) -> None:
        """See `Applications.collect`. An ended pod is kept for its time to live; one that never started is deleted."""
        self._vanished.pop(driver, None)
        self._alive.pop(driver, None)
        pod = self._watch.pods().get(driver)
        if pod is None:
            return
        if is_terminal(pod):
            self._api.annotate(pod, {COLLECTED: self._clock.now().isoformat()})
            self._collected.add(driver)
        elif any(a.end is not None for a in self._applications(pod)):
            # A pod that has started meanwhile has changed, and then this request does nothing.
            self._api.delete(pod, unchanged=True)
            left = self._api.get(driver)
            if left is None or left["metadata"].get("deletionTimestamp"):
                self._discarded.add(driver)

    def tidy(self) -> None:
        """See `Applications.tidy`. Deletes ended pods after their time to live."""
        now = self._clock.now()
        # This launcher never collects pods of tables that another launcher serves.
        self._vanished = {n: a for n, a in self._vanished.items() if now - _ended(a) < _FORGOTTEN_AFTER}
        for pod in self._watch.pods().values():
            applications = self._applications(pod)
            if not applications or not is_terminal(pod) or pod["metadata"].get("deletionTimestamp"):
                continue
            ttl = timedelta(seconds=self._settings.finished_ttl_s)
            if now - _ended(applications) > (ttl if applications[0].is_collected else ttl + _FORGOTTEN_AFTER):
                self._api.delete(pod)

    def close(self, grace_s: float) -> None:  # noqa: ARG002 - no pod is stopped
        """See `Applications.close`. Pods continue to run."""
        self._watch.stop()

    def _applications(self, pod: Pod) -> tuple[Application, ...]:
        return applications_of(pod, self._clock.now(), self._start_timeout)

    def _read_missing(self, name: str, applications: tuple[Application, ...], found: dict[str, tuple[Application, ...]]) -> None:
        """Read a pod that the watch does not show: the pod is gone, or it is so new that the watch has not reported it yet."""
        pod = self._api.get(name)
        now = self._applications(pod) if pod is not None else ()
        if now:
            found[name] = now
        else:
            gone = End(EndKind.LOST, "the driver pod was deleted", self._clock.now())
            self._vanished[name] = tuple(replace(a, end=a.end or gone, condition=None) for a in applications)

    def _owner_reference(self) -> dict[str, Any]:
        kind, _, name = self._settings.owner.partition("/")
        try:
            uid = self._api.workload_uid(kind, name)
        except ApiServerRefused as error:
            raise DependencyDown(
                f"the owner of driver pods, {self._settings.owner}, cannot be read: {error.found}",
                remedy="check launcher.kubernetes.owner and the right of the launcher to get it (docs/kubernetes-security.md)",
            ) from error
        return {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid}


def _ended(applications: Sequence[Application]) -> datetime:
    """Return when the driver of ended applications ended."""
    return max(a.end.ended for a in applications if a.end is not None)


def _template(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return {}

    def refuse(found: str) -> InvalidSetting:
        return InvalidSetting(
            found,
            name="launcher.kubernetes.pod_template",
            origin=str(path),
            expected="a pod template in YAML: a mapping with metadata and spec",
        )

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise refuse(f"pod template {path}: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise refuse(f"pod template {path} holds a {type(found).__name__}")
    # A PodTemplate holds the pod below `template`.
    pod = found.get("template", found)
    return {key: pod[key] for key in ("metadata", "spec") if isinstance(pod, dict) and isinstance(pod.get(key), dict)}
