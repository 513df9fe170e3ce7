import subprocess
import sys

import pytest
from tests.unit.services.fleet import Fleet

from tideline_cli import job_logs
from tideline_launcher.job_logs import keep_job_log
from tideline_launcher.names import application_name, shared_name


@pytest.fixture
def table(tmp_path, monkeypatch):
    fleet = Fleet(tmp_path)
    fleet.create("other")
    yield fleet.create("trips")
    fleet.close()


def stored(table, attempt, text):
    name = application_name("trips", table.base_path, "20260101000000000", attempt)
    keep_job_log(table.storage, name, text, kept=5)
    return name


def test_the_log_is_found_among_all_tables(table, tmp_path, capsys):
    name = stored(table, 1, b'{"event": "clustering ended"}\n\tx\x1b[31m\xff\n')
    assert job_logs.main([name, "--tables", f"{tmp_path}/tables/*"]) == 0
    assert capsys.readouterr().out.splitlines() == ['{"event": "clustering ended"}', "    x\\x1b[31m\ufffd"], (
        "no control of the terminal"
    )


def test_tables_of_the_settings_are_searched(table, tmp_path, capsys):
    name = stored(table, 2, b"failed\n")
    file = tmp_path / "settings.toml"
    file.write_text(f'tables = ["{tmp_path}/tables/trips"]\n')
    assert job_logs.main([name, "--settings", str(file)]) == 0
    assert capsys.readouterr().out == "failed\n"


def test_what_is_wrong_is_told_in_one_line(table, tmp_path, capsys):
    tables = ["--tables", f"{tmp_path}/tables/*"]
    for name, told in (
        ("trips", "application 'trips'; expected a name such as"),
        (shared_name(["trips-1-1", "trips-2-1"]), "expected the name of an attempt at one plan"),
        (application_name("trips", "/elsewhere", "20260101000000000", 1), "none of the tables"),
        (application_name("trips", table.base_path, "20260101000000000", 9), "no log of application"),
    ):
        assert job_logs.main([name, *tables]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1


def test_the_command(table, tmp_path):
    name = stored(table, 3, b"failed\n")
    command = [sys.executable, "-m", "tideline_cli.main", "job", "logs", name, "--tables", f"{tmp_path}/tables/*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "failed\n", "")
