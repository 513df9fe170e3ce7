"""Driver pods on a real API server; the test plays scheduler and kubelet."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.contract.launcher.conftest import WEAK_TOKEN, application, ended, pod_spec, settings_for, wait_until
from tests.unit.services.fleet import ShiftedClock

from tideline_launcher.application import EndKind, LaunchRefused, Obstacle, PlanKey
from tideline_launcher.kubernetes import DriverPods
from tideline_launcher.kubernetes.pod_spec import EXECUTOR_TEMPLATE
from tideline_runtime.errors import DependencyDown

pytestmark = pytest.mark.cluster


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
def make(kubernetes_api, namespace, clock) -> Iterator:
    """Opens a launcher's view of the namespace; `clock` is its own, of the settings the given ones differ."""
    opened = []

    def made(clock=clock, **settings):
        pods = DriverPods(settings_for(kubernetes_api, namespace, **settings), clock)
        opened.append(pods)
        pods.start(lambda: None)
        return pods

    yield made
    for pods in opened:
        pods.close(0)


@pytest.mark.parametrize("executors", [0, 2])
def test_restricted_pod_security_admits_drivers_and_executors(make, namespace, executors):
    pods = make()
    spec = pod_spec(executors=executors)
    pods.launch(spec)
    stored = namespace.pods()[spec.name]
    assert stored["spec"]["securityContext"]["runAsNonRoot"] is True
    assert application(pods, spec.name).executors == executors
    if executors:
        template = json.loads(stored["metadata"]["annotations"][EXECUTOR_TEMPLATE])
        # Spark adds a name and the image; the rest is admitted as it is.
        template["metadata"]["name"] = "executor"
        assert namespace.create(template, dryRun="All")["spec"]["automountServiceAccountToken"] is False
        tokens = [v for v in stored["spec"]["volumes"] if "projected" in v]
        assert len(tokens) == 1, "a driver with executors talks to the API server"


def test_a_pod_that_breaks_pod_security_is_refused_and_nothing_starts(make, namespace, tmp_path):
    template = tmp_path / "template.yaml"
    template.write_text("spec:\n  hostNetwork: true\n")
    pods = make(pod_template=str(template))
    with pytest.raises(LaunchRefused, match="violates PodSecurity") as refused:
        pods.launch(pod_spec())
    assert refused.value.condition.obstacle is Obstacle.REFUSED
    assert namespace.pods() == {}


def test_two_launchers_have_one_pod(make, namespace):
    one, other = make(), make()
    spec = pod_spec()
    one.launch(spec)
    other.launch(spec)
    assert list(namespace.pods()) == [spec.name]
    assert application(other, spec.name).end is None
    namespace.run(spec.name)
    namespace.finish(spec.name, 0)
    assert ended(one, spec.name).end == ended(other, spec.name).end


def test_a_name_that_something_else_has_is_refused(make, namespace):
    pods = make()
    spec = pod_spec()
    pods.launch(spec)
    (plan,) = spec.plans
    another = replace(spec, plans=(replace(plan, key=PlanKey(plan.key.instant, "another-table")),))
    with pytest.raises(LaunchRefused, match="exists and makes other attempts"):
        pods.launch(another)


def test_pods_of_other_fleets_are_not_touched(make):
    make(fleet="other").launch(pod_spec())
    pods = make()
    assert pods.known() == []
    assert pods.attempts([pod_spec().plans[0].key]) == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ({"exit_code": 137, "reason": "OOMKilled"}, EndKind.OUT_OF_MEMORY),
        ({"exit_code": 143}, EndKind.LOST),
        ({"exit_code": 1, "message": '{"recovery": "stop", "exit_code": 1}'}, EndKind.FAILED),
    ],
)
def test_ends_that_a_kubelet_reports(make, namespace, status, kind):
    pods = make()
    spec = pod_spec()
    pods.launch(spec)
    namespace.run(spec.name)
    namespace.finish(spec.name, **status)
    assert ended(pods, spec.name).end.kind is kind


@pytest.mark.parametrize(("reason", "kind"), [("Evicted", EndKind.LOST), ("DeadlineExceeded", EndKind.TIMED_OUT)])
def test_ends_of_whole_pods(make, namespace, reason, kind):
    pods = make()
    spec = pod_spec()
    pods.launch(spec)
    namespace.bind(spec.name)
    namespace.status(spec.name, {"phase": "Failed", "reason": reason, "message": "why"})
    end = ended(pods, spec.name).end
    assert (end.kind, end.reason) == (kind, f"{reason}: why")


def test_a_deleted_pod_is_lost_once_it_is_gone(make, namespace):
    pods = make()
    spec = pod_spec()
    pods.launch(spec)
    namespace.run(spec.name)
    wait_until(lambda: application(pods, spec.name).end is None)
    namespace.delete(spec.name)
    end = ended(pods, spec.name).end
    assert (end.kind, end.reason) == (EndKind.LOST, "the driver pod was deleted")
    assert pods.attempts([spec.plans[0].key]) == []
    pods.collect(spec.name)
    assert pods.known() == []


def test_an_image_that_cannot_be_pulled_is_a_condition_then_an_end(make, namespace, clock):
    pods = make(start_timeout_s=300)
    spec = pod_spec()
    pods.launch(spec)
    namespace.wait(spec.name, "ImagePullBackOff")
    wait_until(lambda: application(pods, spec.name).condition is not None)
    found = application(pods, spec.name)
    assert (found.end, found.condition.obstacle) == (None, Obstacle.IMAGE)
    clock.advance(301)
    end = application(pods, spec.name).end
    assert (end.kind, "ImagePullBackOff: why" in end.reason) == (EndKind.NOT_STARTED, True)
    pods.collect(spec.name)
    for _ in range(20):
        assert pods.known() == [], "also before the watch reports it"
    assert namespace.pods() == {}
    wait_until(lambda: pods._watch.pods() == {})
    assert pods.known() == []


def test_a_pod_that_started_at_the_last_moment_is_not_deleted(make, namespace, clock):
    pods = make(start_timeout_s=300)
    spec = pod_spec()
    pods.launch(spec)
    clock.advance(301)
    late = application(pods, spec.name)
    assert late.end.kind is EndKind.NOT_STARTED
    before = pods._watch.pods()[spec.name]
    namespace.run(spec.name)
    # The launcher's view may be old: it then asks to delete the pod as it was.
    pods._api.delete(before, unchanged=True)
    assert list(namespace.pods()) == [spec.name]


def test_finished_pods_are_deleted_after_their_time_to_live(make, namespace, clock):
    pods = make(finished_ttl_s=60)
    one, other = pod_spec(1), pod_spec(1, instant="20260102000000000")
    for spec in (one, other):
        pods.launch(spec)
        namespace.run(spec.name)
        namespace.finish(spec.name, 0)
        ended(pods, spec.name)
    pods.collect(one.name)
    assert application(pods, one.name).is_collected, "also before the watch reports it"
    further = make()
    assert [a.name for a in further.known() if a.is_collected] == [one.name]
    pods.tidy()
    assert len(namespace.pods()) == 2
    clock.advance(120)
    pods.tidy()
    # Pods with a node need a kubelet that confirms their end.
    marked = {n for n, pod in namespace.pods().items() if "deletionTimestamp" in pod["metadata"]}
    assert {one.name} == marked | ({one.name} - set(namespace.pods()))
    clock.advance(90_000)
    pods.tidy()
    marked = {n for n, pod in namespace.pods().items() if "deletionTimestamp" in pod["metadata"]}
    assert other.name in marked or other.name not in namespace.pods(), "no launcher collects the end of a table that is gone"


def test_driver_pods_belong_to_the_launcher(make, namespace):
    labels = {"app": "launcher"}
    container = {"name": "launcher", "image": "service:1"}
    deployment = {
        "metadata": {"name": "launcher"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    uid = namespace.post(f"/apis/apps/v1/namespaces/{namespace.name}/deployments", deployment)["metadata"]["uid"]
    make(owner="Deployment/launcher").launch(pod_spec())
    (owner,) = namespace.pods()[pod_spec().name]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Deployment", "launcher", uid)


def test_missing_rights_are_named(make, kubernetes_api, namespace):
    with pytest.raises(DependencyDown, match=r"pods is forbidden: User .weak. cannot list"):
        make(kubeconfig=kubernetes_api.kubeconfig(WEAK_TOKEN))
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace.name}"
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    namespace.post(f"{path}/roles", {"metadata": {"name": "reader"}, "rules": [rule]})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "weak"}
    namespace.post(f"{path}/rolebindings", {"metadata": {"name": "reader"}, "roleRef": reference, "subjects": [subject]})
    reader = make(kubeconfig=kubernetes_api.kubeconfig(WEAK_TOKEN))
    with pytest.raises(LaunchRefused, match="cannot create resource"):
        reader.launch(pod_spec())


def test_an_api_server_that_restarts(make, kubernetes_api, namespace):
    """The server then refuses versions of before; the watch lists again, and the view is right."""
    pods = make()
    spec, following = pod_spec(), pod_spec(2)
    pods.launch(spec)
    namespace.run(spec.name)
    kubernetes_api.stop()

    def is_down():
        try:
            pods.known()
        except DependencyDown:
            return True
        return False

    wait_until(is_down)
    with pytest.raises(DependencyDown):
        pods.launch(following)
    kubernetes_api.start()
    wait_until(lambda: not is_down(), 90)
    namespace.finish(spec.name, 1)
    assert ended(pods, spec.name).end.kind is EndKind.FAILED
    pods.launch(following)
    assert {a.name for a in pods.known()} == {spec.name, following.name}


def test_an_expired_version_is_listed_again(make, monkeypatch):
    pods = make(watch_timeout_s=5)
    listed = pods._api.list
    versions = []

    def outdated(selector):
        found = listed(selector)
        versions.append(found.resource_version)
        # A version that the server has not reached is refused in the same way as one that it forgot.
        return replace(found, resource_version="1" if len(versions) < 4 else found.resource_version)

    monkeypatch.setattr(pods._api, "list", outdated)
    wait_until(lambda: len(versions) >= 4, 60)
    pods.launch(pod_spec())
    assert application(pods, pod_spec().name).end is None
