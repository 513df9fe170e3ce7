"""The adapter of `Applications` for Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tideline_launcher.application import Application, ApplicationSpec, End, EndKind, LaunchRefused, PlanKey
from tideline_launcher.kubernetes.api import Pod, PodApi
from tideline_launcher.kubernetes.pod_spec import COMPONENT, DRIVER, FLEET, INSTANT, TABLE, driver_pod
from tideline_launcher.kubernetes.pod_state import COLLECTED, application_of, end_message, is_terminal
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
"""Ended pods whose end no launcher handles, because their table is gone, are deleted so long after the time to live."""


class DriverPods:
    """Implements `Applications` with a driver pod per application. Pods outlive the launcher; the next one finds them by their labels.

    The constructor raises `InvalidSetting`, and reaches the API server only if an owner is set.
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
        self._alive: dict[str, Application] = {}
        self._vanished: dict[str, Application] = {}
        self._collected: set[str] = set()
        self._discarded: set[str] = set()
        self._owner: dict[str, Any] | None = None

    def start(self, wake: Callable[[], None]) -> None:
        """See `Applications.start`. Waits for the first list of pods."""
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
            raise DependencyDown(f"pod {spec.name} existed and is gone")
        found = self._application(created)
        if found is None or found.key != spec.key or found.attempt != spec.attempt:
            raise LaunchRefused(
                f"pod {spec.name} belongs to something else", expected=f"attempt {spec.attempt} at plan {spec.key.instant}"
            )
        self._watch.put(created)

    def known(self) -> Sequence[Application]:
        """See `Applications.known`. A pod that was deleted before its end was handled is listed as lost."""
        pods = self._watch.pods()
        # The watch reports later what this launcher did to a pod.
        self._collected &= pods.keys()
        self._discarded &= pods.keys()
        found: dict[str, Application] = {}
        for name, pod in pods.items():
            application = self._application(pod)
            if application is not None and name not in self._discarded:
                found[name] = replace(application, is_collected=True) if name in self._collected else application
        for name, application in self._alive.items():
            if name not in found and name not in self._vanished:
                self._look_again(application, found)
        self._alive = {n: a for n, a in found.items() if not a.is_collected}
        return [*found.values(), *self._vanished.values()]

    def attempts(self, key: PlanKey) -> Sequence[Application]:
        """See `Applications.attempts`."""
        listed = self._api.list(f"{self._selector},{TABLE}={key.table_uid},{INSTANT}={key.instant}")
        return [a for a in map(self._application, listed.items) if a is not None]

    def log_tail(self, name: str, max_bytes: int) -> bytes:
        """See `Applications.log_tail`. If the node does not give the log, the end that the pod's status holds."""
        try:
            return self._api.log_tail(name, max_bytes)
        except (ApiServerRefused, DependencyDown) as error:
            _log.warning("log of a driver pod cannot be read", application=name, reason=str(error))
        pod = self._watch.pods().get(name)
        return end_message(pod).encode()[-max_bytes:] if pod is not None else b""

    def collect(self, name: str) -> None:
        """See `Applications.collect`. An ended pod is kept for its time to live; one that never started is deleted."""
        self._vanished.pop(name, None)
        self._alive.pop(name, None)
        pod = self._watch.pods().get(name)
        if pod is None:
            return
        if is_terminal(pod):
            self._api.annotate(pod, {COLLECTED: self._clock.now().isoformat()})
            self._collected.add(name)
        elif (application := self._application(pod)) is not None and application.end is not None:
            # If it has started meanwhile it has changed, and is left alone.
            self._api.delete(pod, unchanged=True)
            left = self._api.get(name)
            if left is None or left["metadata"].get("deletionTimestamp"):
                self._discarded.add(name)

    def tidy(self) -> None:
        """See `Applications.tidy`. Deletes ended pods after their time to live."""
        now = self._clock.now()
        # Those of tables that another launcher serves are not collected here.
        self._vanished = {n: a for n, a in self._vanished.items() if a.end is not None and now - a.end.ended < _FORGOTTEN_AFTER}
        for pod in self._watch.pods().values():
            application = self._application(pod)
            if application is None or application.end is None or not is_terminal(pod) or pod["metadata"].get("deletionTimestamp"):
                continue
            ttl = timedelta(seconds=self._settings.finished_ttl_s)
            if now - application.end.ended > (ttl if application.is_collected else ttl + _FORGOTTEN_AFTER):
                self._api.delete(pod)

    def close(self, grace_s: float) -> None:  # noqa: ARG002 - no pod is stopped
        """See `Applications.close`. Pods run on."""
        self._watch.stop()

    def _application(self, pod: Pod) -> Application | None:
        return application_of(pod, self._clock.now(), self._start_timeout)

    def _look_again(self, application: Application, found: dict[str, Application]) -> None:
        """Find out whether a pod that the watch does not show is gone; the watch may not show a new one yet."""
        pod = self._api.get(application.name)
        now = self._application(pod) if pod is not None else None
        if now is not None:
            found[now.name] = now
        else:
            end = application.end or End(EndKind.LOST, "the driver pod was deleted", self._clock.now())
            self._vanished[application.name] = replace(application, end=end, condition=None)

    def _owner_reference(self) -> dict[str, Any]:
        kind, _, name = self._settings.owner.partition("/")
        try:
            uid = self._api.workload_uid(kind, name)
        except ApiServerRefused as error:
            raise DependencyDown(f"owner {self._settings.owner} of driver pods: {error}") from error
        return {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid}


def _template(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return {}

    def refuse(found: str) -> InvalidSetting:
        return InvalidSetting(found, name="launcher.kubernetes.pod_template", origin=str(path), expected="a pod template in YAML")

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise refuse(f"pod template {path}: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise refuse(f"pod template {path} is no mapping")
    # A PodTemplate holds the pod below `template`.
    pod = found.get("template", found)
    return {key: pod[key] for key in ("metadata", "spec") if isinstance(pod, dict) and isinstance(pod.get(key), dict)}
