"""Driver pods as values: what the launcher writes into them, and what it reads in their status."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tideline_launcher.application import ApplicationSpec, Condition, EndKind, Obstacle, PlanKey, PlanRequest
from tideline_launcher.kubernetes import DriverPods
from tideline_launcher.kubernetes.pod_spec import (
    API_SERVER,
    applications_from,
    driver_pod,
    executor_template,
    merged,
    spark_defaults,
)
from tideline_launcher.kubernetes.pod_state import COLLECTED, applications_of
from tideline_launcher.resources import Resources
from tideline_launcher.settings import GIB, MIB, KubernetesSettings
from tideline_runtime.api_server import Listed
from tideline_spark.invocation import parse
from tideline_table.action import TableService
from tideline_table.clock import ManualClock
from tideline_table.errors import Recovery

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TIMEOUT = timedelta(minutes=15)
SETTINGS = KubernetesSettings(
    image="spark:1",
    environment={"AWS_ENDPOINT_URL": "http://store:9000"},
    environment_secrets=("object-store",),
    environment_config_maps=("common",),
    image_pull_secrets=("registry",),
    priority_class="batch",
    node_selector={"pool": "spark"},
    tolerations=({"key": "spark", "operator": "Exists"},),
)
TRIPS = PlanRequest(
    "trips-1-1", PlanKey("20260101000000000", "uid-1"), 1, TableService.CLUSTERING, "s3://lake/trips", {"a.b": "c d"}
)
ALONE = ApplicationSpec(
    "trips-1-1",
    (TRIPS,),
    Resources(0, 2, GIB, 3 * GIB),
    60.5,
    "storage:",
)
SPREAD = replace(ALONE, resources=Resources(3, 2, GIB, 2 * GIB, 700 * MIB, 1))


def pod(spec=ALONE, settings=SETTINGS, template=None, owner=None):
    return driver_pod(spec, settings, template or {}, owner)


def is_restricted(pod_spec):
    """Whether the pod satisfies the restricted Pod Security standard and has a read-only root file system."""
    (container,) = pod_spec["containers"]
    security, own = pod_spec["securityContext"], container["securityContext"]
    return (
        security["runAsNonRoot"]
        and security["runAsUser"] > 0
        and security["seccompProfile"] == {"type": "RuntimeDefault"}
        and own["allowPrivilegeEscalation"] is False
        and own["readOnlyRootFilesystem"] is True
        and own["capabilities"] == {"drop": ["ALL"]}
        and {m["mountPath"]: m["name"] for m in container["volumeMounts"]}["/tmp"] == "tmp"
        and all({"emptyDir", "downwardAPI"} & set(v) for v in pod_spec["volumes"])
    )


@pytest.mark.parametrize("spec", [ALONE, SPREAD])
def test_drivers_are_restricted_and_scheduled_as_the_settings_say(spec):
    found = pod(spec)["spec"]
    assert is_restricted(found)
    assert (found["priorityClassName"], found["nodeSelector"]) == ("batch", {"pool": "spark"})
    assert (found["tolerations"], found["imagePullSecrets"]) == ([{"key": "spark", "operator": "Exists"}], [{"name": "registry"}])
    assert (found["restartPolicy"], found["activeDeadlineSeconds"]) == ("Never", 61)
    assert found["automountServiceAccountToken"] is (spec is SPREAD)
    (container,) = found["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "object-store"}}, {"configMapRef": {"name": "common"}}]
    assert {"name": "AWS_ENDPOINT_URL", "value": "http://store:9000"} in container["env"]
    assert {"name": "TIDELINE_LOCKS", "value": "storage:"} in container["env"]


def test_a_small_plan_is_run_by_the_driver_alone():
    (container,) = pod()["spec"]["containers"]
    *command, module = container["args"][:3]
    assert (command, module) == (["python", "-m"], "tideline_spark.application")
    invocation = parse(container["args"][3:])
    assert (invocation.table, invocation.instant, invocation.local_cores) == ("s3://lake/trips", "20260101000000000", 2)
    assert invocation.options == {"a.b": "c d"}
    assert container["resources"] == {"requests": {"cpu": "2", "memory": "3072Mi"}, "limits": {"memory": "3072Mi"}}
    assert set(pod()["metadata"]["annotations"]) == {"tideline.dev/application"}


def test_a_large_plan_is_run_by_spark_submit_with_its_files_in_annotations():
    found = pod(SPREAD)
    (container,) = found["spec"]["containers"]
    assert container["args"][:4] == ["spark-submit", "--master", API_SERVER, SETTINGS.application_file]
    assert parse(container["args"][4:]).local_cores == 0
    (volume,) = [v for v in found["spec"]["volumes"] if v["name"] == "spark-conf"]
    files = {i["path"]: i["fieldRef"]["fieldPath"].split("'")[1] for i in volume["downwardAPI"]["items"]}
    annotations = found["metadata"]["annotations"]
    template = json.loads(annotations[files["executor.yaml"]])
    assert template == executor_template(SETTINGS, {})
    defaults = dict(line.split(" ", 1) for line in annotations[files["spark-defaults.conf"]].splitlines())
    assert defaults["spark.kubernetes.driver.pod.name"] == defaults["spark.kubernetes.executor.podNamePrefix"] == "trips-1-1"
    assert defaults["spark.kubernetes.executor.podTemplateFile"] == "/opt/spark/conf/executor.yaml"
    assert (defaults["spark.executor.instances"], defaults["spark.executor.cores"]) == ("3", "2")
    assert (defaults["spark.executor.memory"], defaults["spark.executor.memoryOverhead"]) == ("1024m", "700m")
    assert defaults["spark.driver.bindAddress"] == defaults["spark.driver.host"] == "${env:POD_IP}"
    assert "POD_IP" in {e["name"] for e in container["env"]}


def test_executors_are_restricted_and_have_no_token():
    found = executor_template(SETTINGS, {})["spec"]
    assert is_restricted(found)
    assert found["automountServiceAccountToken"] is False
    assert found["serviceAccountName"] == "tideline-spark-executor"
    assert "TIDELINE_LOCKS" not in {e["name"] for e in found["containers"][0]["env"]}


def test_spark_settings_of_the_user_win():
    settings = SETTINGS.model_copy(
        update={"spark": {"spark.executor.memory": "3g", "spark.more": "1", "spark.master": "k8s://other"}}
    )
    assert "k8s://other" in pod(SPREAD, settings)["spec"]["containers"][0]["args"]
    lines = spark_defaults(SPREAD, settings).splitlines()
    assert {"spark.executor.memory 3g", "spark.more 1"} <= set(lines)
    assert "spark.executor.memory 1024m" not in lines


def test_a_secret_url_of_the_locks_is_a_reference():
    settings = SETTINGS.model_copy(update={"locks_secret": "redis/url"})
    text = json.dumps(pod(replace(SPREAD, locks="redis://user:hush@host:6379/0"), settings))
    assert "hush" not in text
    assert json.dumps({"secretKeyRef": {"name": "redis", "key": "url"}}) in text


def test_cpu_requests():
    def request(text, spec):
        settings = SETTINGS.model_copy(update={"cpu_request_per_core": text})
        return pod(spec, settings)["spec"]["containers"][0]["resources"]["requests"]["cpu"], spark_defaults(spec, settings)

    assert request("250m", ALONE)[0] == "500m"
    assert request("250m", SPREAD)[0] == "250m"
    assert "spark.kubernetes.executor.request.cores 500m\n" in request("250m", SPREAD)[1]


def test_a_template_is_added_to_and_does_not_weaken_the_pod():
    template = {
        "metadata": {"labels": {"team": "lake"}, "annotations": {"note": "x"}},
        "spec": {
            "automountServiceAccountToken": True,
            "securityContext": {"runAsNonRoot": False, "supplementalGroups": [5]},
            "volumes": [{"name": "certificates", "configMap": {"name": "ca"}}],
            "tolerations": [{"key": "more"}],
            "containers": [{"name": "any", "env": [{"name": "A", "value": "1"}], "securityContext": {"privileged": True}}],
        },
    }
    found = executor_template(SETTINGS, template)
    assert found["metadata"]["labels"]["team"] == "lake"
    spec = found["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["supplementalGroups"] == [5]
    assert spec["automountServiceAccountToken"] is False
    assert [v["name"] for v in spec["volumes"]] == ["certificates", "tmp"]
    assert [t["key"] for t in spec["tolerations"]] == ["more", "spark"]
    (container,) = spec["containers"]
    assert container["name"] == "spark-executor"
    assert {"name": "A", "value": "1"} in container["env"]
    driver = pod(template=template)
    assert driver["metadata"]["labels"]["team"] == "lake"
    assert driver["metadata"]["labels"]["tideline.dev/table"] == "uid-1"


def test_merging_leaves_its_inputs_alone():
    base, over = {"a": {"b": [1]}, "env": [1]}, {"a": {"c": 2}, "env": [2]}
    assert merged(base, over) == {"a": {"b": [1], "c": 2}, "env": [1, 2]}
    assert base == {"a": {"b": [1]}, "env": [1]}


def seen(status, *, spec=ALONE, age=timedelta(minutes=1), **metadata):
    found = pod(spec)
    created = (NOW - age).isoformat().replace("+00:00", "Z")
    return found | {"metadata": {**found["metadata"], "creationTimestamp": created, **metadata}, "status": status}


def terminated(code, reason="Error", message="", phase="Failed", **more):
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": "2026-01-01T11:59:59Z"}}
    return {"phase": phase, "containerStatuses": [{"name": "driver", "state": state}], **more}


def waiting(reason, message="why"):
    return {
        "phase": "Pending",
        "containerStatuses": [{"name": "driver", "state": {"waiting": {"reason": reason, "message": message}}}],
    }


def application_of(pod, now, timeout):
    (found,) = applications_of(pod, now, timeout)
    return found


def test_a_pod_tells_its_application():
    found = application_of(seen({"phase": "Running"}, spec=SPREAD), NOW, TIMEOUT)
    (meant,) = applications_from(SPREAD)
    assert replace(found, created=meant.created) == meant
    assert found.created == NOW - timedelta(minutes=1)


@pytest.mark.parametrize("annotation", [None, "", "{}", "[]", '{"attempt": "x"}'])
def test_other_pods_are_no_applications(annotation):
    assert (
        applications_of(
            seen({}, annotations={"tideline.dev/application": annotation} if annotation is not None else {}), NOW, TIMEOUT
        )
        == ()
    )


def test_a_collected_pod():
    found = pod()["metadata"]["annotations"] | {COLLECTED: "x"}
    assert application_of(seen(terminated(0, phase="Succeeded"), annotations=found), NOW, TIMEOUT).is_collected


ORDERS = PlanRequest(
    "orders-1-2", PlanKey("20260102000000000", "uid-2"), 2, TableService.COMPACTION, "s3://lake/orders", {"c": "d"}
)
TOGETHER = replace(ALONE, name="shared-1", plans=(TRIPS, ORDERS))


def test_a_driver_of_several_plans_has_a_request_for_each_and_reports_in_its_termination_message():
    found = pod(TOGETHER)
    assert is_restricted(found["spec"])
    assert found["spec"]["automountServiceAccountToken"] is False
    (container,) = found["spec"]["containers"]
    invocation = parse(container["args"][3:])
    assert [(p.service, p.table, p.instant, p.options) for p in invocation.plans] == [
        (p.service, p.base_path, p.key.instant, p.options) for p in TOGETHER.plans
    ]
    assert (invocation.local_cores, str(invocation.outcomes)) == (2, container["terminationMessagePath"])
    labels = found["metadata"]["labels"]
    assert [labels[f"tideline.dev/{name}"] for name in ("table", "instant", "attempt", "service")] == ["shared"] * 4
    of_one_table = pod(replace(TOGETHER, plans=(TRIPS, replace(ORDERS, key=PlanKey("20260102000000000", "uid-1")))))
    assert of_one_table["metadata"]["labels"]["tideline.dev/table"] == "uid-1"


def test_a_pod_tells_each_of_its_plans():
    found = applications_of(seen({"phase": "Running"}, spec=TOGETHER), NOW, TIMEOUT)
    meant = applications_from(TOGETHER)
    assert tuple(replace(a, created=meant[0].created) for a in found) == meant
    assert [(a.name, a.attempt, a.driver, a.end) for a in found] == [
        ("trips-1-1", 1, "shared-1", None),
        ("orders-1-2", 2, "shared-1", None),
    ]


@pytest.mark.parametrize(
    ("status", "kinds"),
    [
        (terminated(0, message="begin 0\nend 0 0 -\nbegin 1\nend 1 3 refresh\n", phase="Succeeded"), ["succeeded", "yielded"]),
        (terminated(1, message="begin 0\nend 0 1 stop\nbegin 1\nend 1 0 -\n"), ["failed", "succeeded"]),
        (terminated(137, "OOMKilled", "begin 0\nend 0 0 -\nbegin 1\n"), ["succeeded", "out_of_memory"]),
        (terminated(137, "OOMKilled", "begin 0\n"), ["out_of_memory", "lost"]),
        (terminated(143, message="begin 0\nend 0 143 retry\n"), ["lost", "lost"]),
        (terminated(137, message="begin 0\nend 0 0 -\nbegin 1\n") | {"reason": "DeadlineExceeded"}, ["succeeded", "timed_out"]),
        (terminated(2, message="usage: several: invalid choice"), ["lost", "lost"]),
        ({"phase": "Failed", "reason": "Evicted"}, ["lost", "lost"]),
    ],
)
def test_each_plan_of_a_pod_has_its_end(status, kinds):
    found = applications_of(seen(status, spec=TOGETHER), NOW, TIMEOUT)
    assert [a.end.kind for a in found] == kinds
    recovery = {"failed": Recovery.STOP, "yielded": Recovery.REFRESH}
    assert [a.end.recovery for a in found] == [recovery.get(kind) for kind in kinds]


def test_a_pod_of_several_plans_that_does_not_start():
    found = applications_of(seen(waiting("ImagePullBackOff"), spec=TOGETHER, age=timedelta(hours=1)), NOW, TIMEOUT)
    assert [(a.end.kind, a.condition.obstacle) for a in found] == [(EndKind.NOT_STARTED, Obstacle.IMAGE)] * 2


class ListedPods:
    """The requests for pods that `DriverPods.attempts` makes."""

    def __init__(self, pods):
        self.pods, self.selectors = pods, []

    def list(self, selector):
        self.selectors.append(selector)
        return Listed(self.pods, "1")


def test_attempts_at_a_plan_are_found_in_pods_of_their_own_and_in_shared_ones_by_one_request():
    api = ListedPods([seen({"phase": "Running"}, spec=s) for s in (ALONE, TOGETHER)])
    pods = DriverPods(SETTINGS, ManualClock(NOW), api)
    assert [(a.driver, a.key) for a in pods.attempts([ORDERS.key])] == [("shared-1", ORDERS.key)]
    assert [a.driver for a in pods.attempts([ORDERS.key, TRIPS.key])] == ["trips-1-1", "shared-1", "shared-1"]
    assert api.selectors[1].endswith(",tideline.dev/instant in (20260101000000000,20260102000000000,shared)")


DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "preempted"}]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (terminated(0, "Completed", phase="Succeeded"), EndKind.SUCCEEDED),
        (terminated(3), EndKind.YIELDED),
        (terminated(4), EndKind.SUPERSEDED),
        (terminated(1), EndKind.FAILED),
        (terminated(137), EndKind.FAILED),
        (terminated(137, "OOMKilled"), EndKind.OUT_OF_MEMORY),
        (terminated(143), EndKind.LOST),
        (terminated(137, "ContainerStatusUnknown"), EndKind.LOST),
        (terminated(137, conditions=DISRUPTED), EndKind.LOST),
        (terminated(4, conditions=DISRUPTED), EndKind.SUPERSEDED),
        (terminated(128, "StartError"), EndKind.NOT_STARTED),
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}, EndKind.LOST),
        ({"phase": "Failed", "reason": "OutOfmemory"}, EndKind.LOST),
        ({"phase": "Failed"}, EndKind.LOST),
        (terminated(137, reason="Error") | {"reason": "DeadlineExceeded"}, EndKind.TIMED_OUT),
    ],
)
def test_ends(status, kind):
    end = application_of(seen(status), NOW, TIMEOUT).end
    assert end.kind is kind
    assert end.ended <= NOW


def test_the_error_of_the_table_is_read_from_the_last_lines_of_the_log():
    message = '{"recovery": "stop", "exit_code": 1, "found": "x"}\n26/01/01 shutting down\n'
    end = application_of(seen(terminated(1, message=message)), NOW, TIMEOUT).end
    assert (end.kind, end.recovery, end.reason) == (EndKind.FAILED, Recovery.STOP, "exit code 1")


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", None])
def test_a_pod_is_not_dead_before_it_is_terminal(phase):
    assert application_of(seen({"phase": phase} if phase else {}), NOW, TIMEOUT).end is None
    ended = terminated(137) | {"phase": "Running"}
    assert application_of(seen(ended), NOW, TIMEOUT).end is None
    assert application_of(seen({"phase": "Running"}, deletionTimestamp="2026-01-01T11:00:00Z"), NOW, TIMEOUT).end is None


@pytest.mark.parametrize(
    ("status", "condition"),
    [
        (waiting("ImagePullBackOff"), Condition(Obstacle.IMAGE, "ImagePullBackOff: why")),
        (waiting("ErrImagePull", ""), Condition(Obstacle.IMAGE, "ErrImagePull")),
        (waiting("CreateContainerConfigError"), Condition(Obstacle.CONFIGURATION, "CreateContainerConfigError: why")),
        (waiting("ContainerCreating"), None),
        ({"phase": "Pending"}, None),
        (
            {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}]},
            Condition(Obstacle.UNSCHEDULABLE, "0/1 nodes"),
        ),
    ],
)
def test_what_keeps_a_pod_from_starting(status, condition):
    found = application_of(seen(status), NOW, TIMEOUT)
    assert (found.condition, found.end) == (condition, None)
    late = application_of(seen(status, age=timedelta(hours=1)), NOW, TIMEOUT)
    assert late.end.kind is EndKind.NOT_STARTED
    assert application_of(seen(status, age=timedelta(hours=1), deletionTimestamp="2026-01-01T11:00:00Z"), NOW, TIMEOUT).end is None
