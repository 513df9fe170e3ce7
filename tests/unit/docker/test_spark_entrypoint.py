"""The Spark image's entry point: the commands that it becomes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from docker import spark_entrypoint
from docker.spark_entrypoint import WrongUse, command, executor_command, launcher_command, parse_launcher_output

HOMES = {"JAVA_HOME": "/java", "SPARK_HOME": "/spark"}
EXECUTOR = {
    **HOMES,
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.244.0.9:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "10.244.0.10",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "app-exec-3",
}


def test_an_executor_has_its_options_in_the_order_of_their_numbers() -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dn={number}" for number in (10, 2, 0)}
    found = executor_command({**EXECUTOR, **options, "SPARK_JAVA_OPT_X": "no"})
    assert found[:6] == ["/java/bin/java", "-Dn=0", "-Dn=2", "-Dn=10", "-Xms512m", "-Xmx512m"]
    assert found[6:9] == ["-cp", "/opt/spark/conf:/spark/jars/*", spark_entrypoint.EXECUTOR_CLASS]
    pairs = dict(zip(found[9::2], found[10::2], strict=True))
    assert pairs == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"],
        "--executor-id": "3",
        "--cores": "1",
        "--app-id": "app",
        "--hostname": "10.244.0.10",
        "--resourceProfileId": "0",
        "--podName": "app-exec-3",
    }


def test_configuration_is_first_and_additional_jars_last_on_the_class_path() -> None:
    found = executor_command({**EXECUTOR, "SPARK_CONF_DIR": "/conf", "SPARK_EXTRA_CLASSPATH": "/more.jar"})
    assert "/conf:/spark/jars/*:/more.jar" in found


@pytest.mark.parametrize("name", EXECUTOR)
def test_an_executor_without_a_variable_says_which(name: str) -> None:
    with pytest.raises(WrongUse, match=f"no variable {name};"):
        command(["executor"], {key: value for key, value in EXECUTOR.items() if key != name})


def test_other_commands_stay_as_they_are() -> None:
    assert command(["python", "-c", "1"], {}) == ["python", "-c", "1"]
    with pytest.raises(WrongUse, match="no arguments"):
        command([], {})


def test_parts_of_the_drivers_command_may_hold_spaces_and_line_breaks() -> None:
    assert parse_launcher_output("warning\n\0\njava\0-Da=b c\0line\nbreak\0") == ["java", "-Da=b c", "line\nbreak"]
    with pytest.raises(WrongUse, match="Unrecognized option"):
        parse_launcher_output("Unrecognized option\n")


@pytest.mark.parametrize("name", ["application", "driver", "spark-submit"])
def test_a_driver_becomes_what_sparks_launcher_prints(tmp_path: Path, name: str) -> None:
    java, jars = tmp_path / "bin" / "java", tmp_path / "jars"
    java.parent.mkdir()
    jars.mkdir()
    (jars / "scala-library-2.13.18.jar").touch()
    said = "[os.environ['SPARK_SCALA_VERSION'], *sys.argv[1:]]"
    java.write_text(f"#!{sys.executable}\nimport os, sys\nprint('\\0\\n' + '\\0'.join({said}), end='\\0')\n")
    java.chmod(0o755)
    homes = {"JAVA_HOME": str(tmp_path), "SPARK_HOME": str(tmp_path)}
    file = [spark_entrypoint.APPLICATION_FILE] if name == "application" else []
    expected = launcher_command(homes, [*file, "--table=a b"])
    assert command([name, "--table=a b"], homes) == ["2.13", *expected[1:]]


def test_a_driver_without_sparks_jars_says_so(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="no scala-library"):
        command(["driver", "job.py"], {"JAVA_HOME": "/java", "SPARK_HOME": str(tmp_path)})


def test_a_wrong_use_is_one_line_and_an_exit_code() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    program = [sys.executable, spark_entrypoint.__file__, "executor"]
    done = subprocess.run(program, check=False, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("entry point: found no variable")
    assert done.stderr.count("\n") == 1
