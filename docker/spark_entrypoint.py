"""Entry point of the Spark image. It replaces itself with the process that its first argument names; no shell takes part.

application ARGS    a table service of Tideline as the driver, with the arguments of `tideline_spark.application`
driver ARGS         any driver, with the arguments of spark-submit; `spark-submit ARGS` is the same
executor            an executor, as Spark's Kubernetes scheduler starts it: everything else is in the environment
COMMAND ARGS        any other program
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

APPLICATION_FILE = "/opt/spark/application.py"
CONFIGURATION_FOLDER = "/opt/spark/conf"
SUBMIT_CLASS = "org.apache.spark.deploy.SparkSubmit"
LAUNCHER_CLASS = "org.apache.spark.launcher.Main"
EXECUTOR_CLASS = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
JAVA_OPTION = "SPARK_JAVA_OPT_"
EXECUTOR_ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
"""What the executor is started with, each value from a variable that the driver put into the pod's environment."""
DRIVERS = frozenset({"application", "driver", "spark-submit"})
EXIT_USAGE = 2


class WrongUse(Exception):
    """The arguments or the environment are incomplete; the message says what is missing."""


def java(environment: Mapping[str, str]) -> str:
    """Return the path of the Java program."""
    return f"{_variable(environment, 'JAVA_HOME')}/bin/java"


def executor_command(environment: Mapping[str, str]) -> list[str]:
    """Return the command of an executor. Raises WrongUse if the driver's variables are not there."""
    numbered = sorted(
        (int(name.removeprefix(JAVA_OPTION)), value)
        for name, value in environment.items()
        if name.startswith(JAVA_OPTION) and name.removeprefix(JAVA_OPTION).isdigit()
    )
    memory = _variable(environment, "SPARK_EXECUTOR_MEMORY")
    command = [java(environment), *(option for _, option in numbered), f"-Xms{memory}", f"-Xmx{memory}"]
    command += ["-cp", class_path(environment), EXECUTOR_CLASS]
    for argument, variable in EXECUTOR_ARGUMENTS.items():
        command += [argument, _variable(environment, variable)]
    return command


def class_path(environment: Mapping[str, str]) -> str:
    """Return the class path of an executor: configuration, Spark's jars, then the additional ones."""
    parts = [environment.get("SPARK_CONF_DIR", CONFIGURATION_FOLDER), f"{_variable(environment, 'SPARK_HOME')}/jars/*"]
    return ":".join([*parts, *filter(None, [environment.get("SPARK_EXTRA_CLASSPATH")])])


def launcher_command(environment: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """Return the command that prints the driver's command, as `spark-class` does in a shell."""
    jars = f"{_variable(environment, 'SPARK_HOME')}/jars/*"
    return [java(environment), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", jars, LAUNCHER_CLASS, SUBMIT_CLASS, *arguments]


def scala_version(environment: Mapping[str, str]) -> str:
    """Return Scala's version in Spark's jars, such as 2.13.

    In a shell `load-spark-env.sh` sets it; the launcher does not find it itself.
    """
    folder = Path(_variable(environment, "SPARK_HOME")) / "jars"
    for path in folder.glob("scala-library-*.jar"):
        return ".".join(path.name.removeprefix("scala-library-").split(".")[:2])
    raise WrongUse(f"found no scala-library-*.jar in {folder}; expected Spark's jars there")


def parse_launcher_output(output: str) -> list[str]:
    """Return the command in the launcher's output: after a line with NUL alone, each part ended by NUL. Raises WrongUse."""
    before, mark, parts = output.partition("\0\n")
    if not mark or not parts.endswith("\0"):
        raise WrongUse(f"Spark's launcher printed no command: {before.strip()[-1000:]}")
    return parts.split("\0")[:-1]


def command(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command to run for the arguments of the container. Raises WrongUse."""
    if not arguments:
        raise WrongUse("no arguments; expected application, driver, executor or a command")
    first, rest = arguments[0], list(arguments[1:])
    if first == "executor":
        return executor_command(environment)
    if first == "application":
        rest = [APPLICATION_FILE, *rest]
    if first not in DRIVERS:
        return list(arguments)
    given = {"SPARK_SCALA_VERSION": scala_version(environment), **environment}
    done = subprocess.run(launcher_command(environment, rest), env=given, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise WrongUse(f"Spark's launcher ended with {done.returncode}: {done.stdout.strip()[-1000:]}")
    return parse_launcher_output(done.stdout)


def main() -> None:
    """Replace this process by the command."""
    try:
        found = command(sys.argv[1:], os.environ)
        os.execvp(found[0], found)
    except (WrongUse, OSError) as error:
        print(f"entry point: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def _variable(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise WrongUse(f"found no variable {name}; expected it in the pod's environment")
    return value


if __name__ == "__main__":
    main()
