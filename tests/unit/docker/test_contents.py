"""What images leave out, what their bills of materials list, and when the service image is healthy."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from pathlib import Path

import pytest
from docker import health
from docker.components import debian_components, jar_components
from docker.pruning import is_unused, unused

STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Description: GNU C Library: Shared libraries
 Contains the standard libraries
Version: 2.36-9+deb12u14

Package: removed
Status: deinstall ok config-files
Architecture: all
Version: 1
"""


@pytest.mark.parametrize(
    ("jar", "expected"),
    [
        ("rocksdbjni-9.8.4.jar", True),
        ("hive-exec-2.3.10-core.jar", True),
        ("hive-storage-api-2.8.1.jar", False),
        ("icu4j-78.3.jar", False),
        ("spark-sql_2.13-4.3.0.jar", False),
        ("scala-library-2.13.18.jar", False),
    ],
)
def test_jars_that_no_table_service_loads_are_left_out(jar: str, expected: bool) -> None:
    assert is_unused(jar) is expected


def test_pruning_finds_tests_but_no_code(tmp_path: Path) -> None:
    names = (
        "numpy/lib/tests/test_a.py",
        "numpy/lib/b.py",
        "pyarrow/libarrow.so.2600",
        "pyarrow/libarrow_flight.so.2600",
        "pyarrow/lib.pyx",
    )
    for name in (*names, "pyspark/jars/derby-10.jar", "pyspark/jars/zstd-jni-1.jar"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = {str(path.relative_to(tmp_path)) for path in unused(tmp_path)}
    assert found == {"numpy/lib/tests", "pyarrow/libarrow_flight.so.2600", "pyarrow/lib.pyx", "pyspark/jars/derby-10.jar"}


def test_installed_debian_packages_are_components() -> None:
    (found,) = debian_components(STATUS)
    assert (found["name"], found["version"]) == ("libc6", "2.36-9+deb12u14")
    assert found["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64"


def test_jars_are_components_with_their_hashes(tmp_path: Path) -> None:
    (tmp_path / "spark-core_2.13-4.3.0.jar").write_bytes(b"x")
    (found,) = jar_components(tmp_path)
    assert (found["name"], found["version"]) == ("spark-core_2.13", "4.3.0")
    assert found["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"x").hexdigest()}]


class _Probes(http.server.BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


def test_the_image_is_healthy_when_its_service_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELINE_STATE_FOLDER", str(tmp_path))
    assert health.main() == 1
    with http.server.HTTPServer(("127.0.0.1", 0), _Probes) as server:
        running = {"service": "mirror", "host": "127.0.0.1", "port": server.server_port}
        (tmp_path / "mirror.json").write_text(json.dumps(running))
        (tmp_path / "other.json").write_text("[]")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert health.main() == 0
            monkeypatch.setattr(_Probes, "status", 503)
            assert health.main() == 1
        finally:
            server.shutdown()
            thread.join()
    assert health.main() == 1
