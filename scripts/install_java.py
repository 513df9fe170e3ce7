"""Find a Java runtime for Spark, or install one (`make java`), and print its JAVA_HOME.

Installs from Debian's packages if run as root, else with install-jdk into the user's cache folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import jdk

from tideline_spark.errors import JavaNotFound
from tideline_spark.java import MIN_JAVA, find_java, install_folder

PACKAGES = ("openjdk-17-jre-headless", "default-jre-headless")
TIMEOUT_S = 600.0


def install_package() -> str:
    """Install a runtime with apt-get. Return the problem, or empty text on success."""
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return "apt-get needs root" if apt else "no apt-get"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    commands = [["update"], *(["install", "-y", "--no-install-recommends", name] for name in PACKAGES)]
    problem = ""
    for arguments in commands:
        try:
            subprocess.run([apt, *arguments], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            problem = f"apt-get {' '.join(arguments)}: {last_line(error)}"
        else:
            if arguments[0] == "install":
                return ""
    return problem


def install_archive() -> str:
    """Unpack a runtime into the user's cache folder. Return the problem, or empty text on success."""
    folder = install_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        jdk.install(str(MIN_JAVA), jre=True, path=str(folder))
    except Exception as error:  # noqa: BLE001 - a download can raise any error of its libraries
        return f"install-jdk: {last_line(error)}"
    return ""


def last_line(error: Exception) -> str:
    """Return the last line of a failed command's output."""
    text = str(getattr(error, "stderr", None) or error).strip()
    return text.splitlines()[-1] if text else type(error).__name__


def main() -> int:
    """Print JAVA_HOME of a Java that Spark can use."""
    tried = []
    for install in (None, install_package, install_archive):
        if install is not None:
            tried.append(install())
        try:
            print(find_java())
        except JavaNotFound as error:
            absent = error
        else:
            return 0
    print(f"{absent}; tried: {'; '.join(filter(None, tried))}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
