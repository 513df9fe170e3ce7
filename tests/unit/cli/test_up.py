"""What `tideline up` and the demo check before they start a process."""

from pathlib import Path

import pytest
from examples.demo.__main__ import main as demo
from examples.demo.run import DemoFailed

from tideline_cli.platform import _environment
from tideline_cli.up import _services, run_services
from tideline_console.settings import ConsoleSettings
from tideline_planner.settings import PlannerSettings
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.policy import read_policies
from tideline_runtime.supervisor import Child


class Started(Exception):
    """The supervisor was reached."""


@pytest.fixture
def settings(monkeypatch, tmp_path):
    """Write the settings file of the services; a start of the supervisor raises `Started`."""
    monkeypatch.setattr("tideline_cli.up.Supervisor", _reached)

    def write(*sections: str, **shared: str) -> None:
        lines = {"tables": "['/absent/*']", "state_folder": repr(str(tmp_path / "state")), **shared}
        file = tmp_path / "tideline.toml"
        file.write_text("\n".join([*(f"{name} = {value}" for name, value in lines.items()), *sections]))
        monkeypatch.setenv("TIDELINE_SETTINGS_FILE", str(file))

    return write


def _reached(*_: object, **__: object) -> None:
    raise Started


def test_up_refuses_one_port_for_all_services(settings, tmp_path):
    settings(http_port="8080")
    with pytest.raises(InvalidSetting, match="8080 for mirror, planner, launcher, cleaner, lock_service") as caught:
        run_services()
    assert caught.value.name == "http_port"
    assert not (tmp_path / "state").exists()


def test_up_refuses_a_port_that_two_services_have_in_common(settings):
    settings("[mirror]\nhttp_port = 8081", "[lock_service]\nhttp_port = 8081")
    with pytest.raises(InvalidSetting, match="8081 for mirror, lock_service"):
        run_services()


def test_an_empty_pattern_is_refused_and_not_the_present_folder(settings):
    """`--tables "$TABLES"` of a variable that is not set let the services work on the folder in which the command ran."""
    assert _environment([""], None, None)["TIDELINE_TABLES"] == '[""]'
    settings(tables="['']")
    with pytest.raises(InvalidSetting, match="setting 'tables' has ''"):
        run_services()


def test_up_starts_services_with_ports_of_their_own(settings):
    names = ("mirror", "planner", "launcher", "cleaner", "lock_service")
    settings(*(f"[{name}]\nhttp_port = {8080 + at}" for at, name in enumerate(names)))
    with pytest.raises(Started):
        run_services()


def test_observe_starts_what_only_reads_with_a_policy_that_forbids_writes_whatever_the_settings_say(
    settings, monkeypatch, tmp_path
):
    (tmp_path / "mine.yaml").write_text("version: 1\ndefaults: {mode: services}\n")
    found: list[Child] = []

    def reached(children, *_, **__) -> None:
        found.extend(children)
        raise Started

    monkeypatch.setattr("tideline_cli.up.Supervisor", reached)
    settings(f"[planner]\npolicy_file = '{tmp_path / 'mine.yaml'}'\n[console]\nactions = true")
    with pytest.raises(Started):
        run_services(observes=True)
    assert {child.name for child in found} - {"console"} == {"mirror", "planner"}
    for child in found:
        for name, value in child.environment.items():
            monkeypatch.setenv(name, value)
        if child.name == "planner":
            policies = read_policies(PlannerSettings.load().policy_file)
            assert policies.of("/any/table").observes
        assert child.name != "console" or not ConsoleSettings.load().actions, "they are commands that write"


def test_up_names_the_setting_of_a_state_folder_that_cannot_be_made(settings, tmp_path):
    (tmp_path / "file").write_text("")
    settings(state_folder=repr(str(tmp_path / "file" / "state")))
    with pytest.raises(InvalidSetting, match="state_folder") as caught:
        run_services()
    assert caught.value.name == "state_folder"


def test_a_demo_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys):
    (tmp_path / "file").write_text("")
    assert demo(tmp_path / "file" / "demo") == 1
    assert capsys.readouterr().err.startswith("tideline: error: Not a directory while writing")


def test_a_demo_whose_services_do_not_start_reports_the_cause(tmp_path: Path, capsys, monkeypatch):
    def fail(_):
        raise DemoFailed("the services did not start")

    monkeypatch.setattr("examples.demo.run.start_services", fail)
    assert demo(tmp_path / "demo") == 1
    assert capsys.readouterr().err == "tideline: error: the services did not start\n"


def test_up_runs_the_catalog_service_if_it_has_a_catalog(settings):
    settings()
    assert "catalog" not in _services()
    settings("[catalog]\nurl = 'hms://metastore:9083'")
    assert _services()[4] == "catalog"


@pytest.mark.parametrize(
    ("given", "is_there"),
    [
        ({}, False),
        ({"locks": "'redis://redis.example:6379/0'"}, False),
        ({"locks": "'storage:'"}, True),
        ({"locks": "'redis://redis.example:6379/0'", "http_port": "8080"}, True),
    ],
)
def test_up_runs_the_lock_service_only_where_somebody_needs_it(settings, given, is_there):
    settings(**given)
    assert ("lock_service" in _services()) == is_there


@pytest.mark.parametrize(("section", "count"), [("", "2"), ("[launcher.workers]\ncount = 0", None)])
def test_up_runs_small_plans_in_resident_workers_unless_the_settings_say_others(settings, monkeypatch, section, count):
    found: list[Child] = []

    def reached(children, *_, **__) -> None:
        found.extend(children)
        raise Started

    monkeypatch.setattr("tideline_cli.up.Supervisor", reached)
    settings(section)
    with pytest.raises(Started):
        run_services()
    (launcher,) = [child for child in found if child.name == "launcher"]
    assert launcher.environment.get("TIDELINE_LAUNCHER__WORKERS__COUNT") == count
