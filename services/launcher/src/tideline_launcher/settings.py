"""Settings of the launcher."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

from tideline_runtime.settings import ServiceSettings, setting
from tideline_spark.outcomes import MAX_PLANS

MIB = 1024 * 1024
GIB = 1024 * MIB


def _checked_owner(text: str) -> str:
    kind, slash, name = text.partition("/")
    if text and (kind not in ("Deployment", "StatefulSet") or not slash or not name):
        raise ValueError("Deployment/NAME, StatefulSet/NAME or nothing")
    return text


def _checked_reference(text: str) -> str:
    name, slash, key = text.partition("/")
    if text and not (name and slash and key):
        raise ValueError("SECRET/KEY or nothing")
    return text


class ResourceSettings(BaseModel):
    """How much of a cluster one plan gets, and the caps. Local applications use `local_cores` instead."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    driver_only_bytes: int = setting(
        256 * MIB,
        unit="bytes",
        description="A plan that reads at most so much runs in the driver alone, without executors.",
        per_table=True,
        ge=0,
    )
    bytes_per_core: int = setting(
        512 * MIB,
        unit="bytes",
        description="Input of a plan for which one core is asked; tasks (file groups, or output files of a large clustering "
        "group) bound the cores.",
        per_table=True,
        ge=1,
    )
    memory_per_input_byte: float = setting(
        6.0,
        unit="-",
        description="Memory of a task per byte of the largest file group that it reads: decompressed rows, and their sorted copy.",
        per_table=True,
        gt=0,
    )
    executor_cores: int = setting(2, unit="cores", description="Most tasks that one executor runs at once.", per_table=True, ge=1)
    driver_cores: int = setting(
        2, unit="cores", description="Most tasks at once of a plan that runs in the driver alone.", per_table=True, ge=1
    )
    heap_bytes: int = setting(
        1 * GIB,
        unit="bytes",
        description="Heap of the driver's and each executor's JVM; rows stay outside of it.",
        per_table=True,
        ge=512 * MIB,
    )
    max_executor_memory_bytes: int = setting(
        8 * GIB, unit="bytes", description="Most memory of an executor pod.", per_table=True, ge=1 * GIB
    )
    max_driver_memory_bytes: int = setting(
        8 * GIB, unit="bytes", description="Most memory of a driver pod.", per_table=True, ge=1 * GIB
    )
    max_executors_per_application: int = setting(
        8, unit="executors", description="Most executors of one application.", per_table=True, ge=1
    )
    max_executors_per_table: int = setting(
        8, unit="executors", description="Most executors of all applications of one table at once.", per_table=True, ge=1
    )
    max_executors: int = setting(
        32, unit="executors", description="Most executors of all applications of this launcher (of each shard) at once.", ge=1
    )


class SharingSettings(BaseModel):
    """How many plans that run in the driver alone share one application, so that Spark does not start for each of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_plans: int = setting(
        16,
        unit="plans",
        description="Most plans of one application, of any tables, that run one after the other. 1: each plan has its own "
        "application. At 16, Spark's start costs each plan a sixteenth; more saves little and makes the last plan wait longer.",
        ge=1,
        le=MAX_PLANS,
    )
    max_bytes: int = setting(
        1 * GIB,
        unit="bytes",
        description="Most input of the plans that share one application; bounds how long the last one waits.",
        ge=1,
    )
    max_wait_s: float = setting(
        0.0,
        unit="s",
        description="How long a plan waits for others to share its application, if an application could start at once. Without a "
        "wait plans still share: those that become pending while `max_applications` applications run start together.",
        ge=0,
    )


class WorkerSettings(BaseModel):
    """Resident Python processes of the launcher, which run small plans without Spark, one at a time each."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int = setting(0, unit="processes", description="Most resident workers. 0: every plan runs on Spark.", ge=0, le=256)
    max_bytes: int = setting(
        64 * MIB,
        unit="bytes",
        description="A plan that reads at most so much runs in a resident worker, others on Spark. 0: all of the table's plans "
        "on Spark.",
        per_table=True,
        ge=0,
    )
    memory_bytes: int = setting(
        1 * GIB,
        unit="bytes",
        description="Most memory of a worker. One that takes more is killed, and its plan runs on Spark with more memory. Plans "
        "that need more by `resources.memory_per_input_byte` run on Spark from the start.",
        ge=384 * MIB,
    )
    max_plans: int = setting(500, unit="plans", description="Plans after which a worker is replaced by a new process.", ge=1)
    max_queued: int = setting(
        32,
        unit="plans",
        description="Most plans that wait for a worker; they start in this order. More stay with the launcher.",
        ge=0,
    )
    idle_s: float = setting(
        600.0, unit="s", description="A worker without a plan for so long ends; the next plan starts one.", gt=0
    )


class KubernetesSettings(BaseModel):
    """Where and how driver and executor pods run. Used if `runner` is `kubernetes`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    namespace: str = setting("", unit="-", description="Namespace of the pods; empty: the launcher's own.")
    kubeconfig: Path | None = setting(
        None, unit="-", description="Kubeconfig file of a launcher outside of the cluster; unset: the pod's service account."
    )
    fleet: str = setting(
        "tideline",
        unit="-",
        description="Label of all pods of this installation. Launchers adopt pods of their own fleet only.",
        pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
    )
    owner: Annotated[str, AfterValidator(_checked_owner)] = setting(
        "",
        unit="-",
        description="Owner of the driver pods, so that uninstalling deletes them: `Deployment/NAME` or `StatefulSet/NAME` of "
        "the launcher.",
    )
    image: str = setting("", unit="-", description="Spark image of drivers and executors. Required for the runner `kubernetes`.")
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = setting(
        "IfNotPresent", unit="-", description="When nodes pull the image."
    )
    image_pull_secrets: tuple[str, ...] = setting((), unit="-", description="Secrets with credentials of the image's registry.")
    application_file: str = setting(
        "/opt/spark/application.py",
        unit="-",
        description="Path of the table-service application in the image, for spark-submit.",
    )
    driver_service_account: str = setting(
        "tideline-spark-driver", unit="-", description="Service account of drivers, which start executors.", min_length=1
    )
    executor_service_account: str = setting(
        "tideline-spark-executor", unit="-", description="Service account of executors; its token is not mounted.", min_length=1
    )
    environment: dict[str, str] = setting(
        {}, unit="-", description="Environment of drivers and executors, such as AWS_ENDPOINT_URL. No secrets: pods show it."
    )
    environment_secrets: tuple[str, ...] = setting(
        (),
        unit="-",
        description="Secrets whose keys become environment variables of drivers and executors: object-store credentials.",
    )
    environment_config_maps: tuple[str, ...] = setting(
        (), unit="-", description="Config maps whose keys become environment variables of drivers and executors."
    )
    locks_secret: Annotated[str, AfterValidator(_checked_reference)] = setting(
        "", unit="-", description="`SECRET/KEY` with the URL of the locks, for drivers. Required if the URL holds a password."
    )
    spark: dict[str, str] = setting({}, unit="-", description="More Spark settings, which win over the launcher's own.")
    priority_class: str = setting("", unit="-", description="Priority class of drivers and executors.")
    node_selector: dict[str, str] = setting({}, unit="-", description="Node labels that drivers and executors need.")
    tolerations: tuple[dict[str, str], ...] = setting((), unit="-", description="Tolerations of drivers and executors.")
    pod_template: Path | None = setting(
        None,
        unit="-",
        description="YAML file with a pod template for drivers and executors. The launcher adds to it and replaces what it sets "
        "itself.",
    )
    run_as_user: int = setting(1000, unit="-", description="User and file-system group of drivers and executors.", ge=1)
    cpu_request_per_core: str = setting(
        "1", unit="-", description="CPU that a pod requests per core, as Kubernetes writes it: 1, 500m.", pattern=r"^[0-9]+m?$"
    )
    scratch_bytes: int = setting(2 * GIB, unit="bytes", description="Most space of /tmp in a pod.", ge=64 * MIB)
    grace_s: int = setting(30, unit="s", description="How long a driver may take to end after SIGTERM.", ge=1)
    start_timeout_s: float = setting(
        900.0, unit="s", description="A driver pod that does not start for so long is deleted and tried again later.", gt=0
    )
    finished_ttl_s: float = setting(3600.0, unit="s", description="How long finished driver pods are kept.", ge=0)
    request_timeout_s: float = setting(15.0, unit="s", description="Deadline of a request to the API server.", gt=0)
    watch_timeout_s: int = setting(300, unit="s", description="Length of one watch of the pods; then another begins.", ge=5)


class LauncherSettings(ServiceSettings):
    """See `ServiceSettings`."""

    section: ClassVar[str | None] = "launcher"

    runner: Literal["local", "kubernetes"] = setting(
        "local", unit="-", description="Where Spark applications run: `local` processes, or driver pods on `kubernetes`."
    )
    max_applications: int = setting(1, unit="applications", description="Most Spark applications that run at once.", ge=1)
    max_attempts: int = setting(
        3,
        unit="attempts",
        description="Failed attempts at one plan before it is given up and rolled back, so that a new one can be made. Attempts "
        "that ended because of the cluster (evicted, node lost, image not pulled) do not count.",
        per_table=True,
        ge=1,
    )
    local_cores: int = setting(1, unit="cores", description="Cores of a local Spark application.", ge=1)
    application_timeout_s: float = setting(
        3600.0,
        unit="s",
        description="A Spark application that runs longer is stopped, however many plans it runs. Plans share one only if this "
        "is equal.",
        per_table=True,
        gt=0,
    )
    options: dict[str, str] = setting(
        {}, unit="-", description="Engine options handed to applications, such as the codec of base files."
    )
    job_log_bytes: int = setting(
        256 * 1024, unit="bytes", description="Most of a failed application's log that is kept: its end.", per_table=True, ge=1024
    )
    job_logs_kept: int = setting(
        20, unit="logs", description="Logs of failed applications that are kept per table.", per_table=True, ge=1
    )
    resources: ResourceSettings = setting(ResourceSettings(), unit="-", description="Resources of an application on Kubernetes.")
    sharing: SharingSettings = setting(SharingSettings(), unit="-", description="Small plans that share an application.")
    workers: WorkerSettings = setting(
        WorkerSettings(), unit="-", description="Resident workers, which run small plans without Spark."
    )
    kubernetes: KubernetesSettings = setting(KubernetesSettings(), unit="-", description="Pods of the runner `kubernetes`.")
