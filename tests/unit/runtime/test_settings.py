import json
from pathlib import Path

import pytest
from pydantic import BaseModel, SecretStr

from tideline_runtime.errors import InvalidDeclaration, InvalidSetting
from tideline_runtime.setting_sources import declare_variable
from tideline_runtime.setting_text import setting_rows, settings_toml
from tideline_runtime.settings import ServiceSettings, declared_settings, setting


class Retention(BaseModel):
    keep_commits: int = setting(10, unit="commits", description="How many commits stay.", ge=1)
    owner: str | None = setting(None, unit="-", description="Who decides.")


class SweeperSettings(ServiceSettings):
    section = "sweeper"

    batch: int = setting(100, unit="files", description="Files per request.", ge=1, le=1000)
    roots: tuple[Path, ...] = setting((), unit="-", description="Where to look.")
    conf: dict[str, str] = setting({}, unit="-", description="Options.")
    retention: Retention = setting(Retention(), unit="-", description="What stays.")
    secret: SecretStr | None = setting(None, unit="-", description="A secret.", min_length=8)


class DiggerSettings(ServiceSettings):
    section = "digger"

    depth_m: float = setting(unit="m", description="How deep; there is no default.")


def load(file=None, environment=None, **explicit):
    return SweeperSettings.load(file=file, environment=environment or {}, **explicit)


def refused(file=None, environment=None, **explicit):
    with pytest.raises(InvalidSetting) as caught:
        load(file, environment, **explicit)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "tideline.toml"
        path.write_text(text)
        return path

    return write


def test_precedence_is_argument_environment_file_default(written):
    file = written("http_port = 1\nshard_count = 4\npoll_interval_s = 9\n")
    environment = {"TIDELINE_HTTP_PORT": "2", "TIDELINE_SHARD_COUNT": "5"}
    settings = load(file, environment, http_port=3)
    assert (settings.http_port, settings.shard_count, settings.poll_interval_s, settings.log_level) == (3, 5, 9, "info")
    assert settings.origin("http_port") == "argument"
    assert settings.origin("shard_count") == "environment variable TIDELINE_SHARD_COUNT"
    assert settings.origin("poll_interval_s") == f"settings file {file}"
    assert settings.origin("log_level") == "default"


def test_a_section_overrides_shared_settings_for_its_service_only(written):
    file = written("http_port = 1\n[sweeper]\nhttp_port = 2\n[digger]\nhttp_port = 3\ndepth_m = 1\n")
    assert load(file).http_port == 2
    assert DiggerSettings.load(file=file, environment={}).http_port == 3
    # Any source of the environment stands above any of the file.
    assert load(file, {"TIDELINE_HTTP_PORT": "4"}).http_port == 4
    assert load(file, {"TIDELINE_HTTP_PORT": "4", "TIDELINE_SWEEPER__HTTP_PORT": "5"}).http_port == 5
    assert load(file, {"TIDELINE_SWEEPER__TABLES": "/own", "TIDELINE_TABLES": "/shared"}).tables == ("/own",)


def test_nested_settings_merge_over_sources(written):
    file = written('[sweeper.retention]\nkeep_commits = 3\nowner = "ops"\n')
    settings = load(file, {"TIDELINE_SWEEPER__RETENTION__KEEP_COMMITS": "4"})
    assert settings.retention == Retention(keep_commits=4, owner="ops")
    assert settings.origin("retention.keep_commits") == "environment variable TIDELINE_SWEEPER__RETENTION__KEEP_COMMITS"


def test_lists_and_mappings_from_text():
    environment = {
        "TIDELINE_TABLES": " /a , /b/* ",
        "TIDELINE_SWEEPER__ROOTS": '["/c,d"]',
        "TIDELINE_SWEEPER__CONF": '{"x.y": "1"}',
        "TIDELINE_SWEEPER__RETENTION": '{"keep_commits": 2}',
    }
    settings = load(environment=environment)
    assert settings.tables == ("/a", "/b/*")
    assert settings.roots == (Path("/c,d"),)
    assert settings.conf == {"x.y": "1"}
    assert settings.retention.keep_commits == 2


def test_settings_file_from_the_environment_and_its_override(written, tmp_path):
    file = written("http_port = 1\n")
    other = tmp_path / "other.toml"
    other.write_text("http_port = 2\n")
    assert load(None, {"TIDELINE_SETTINGS_FILE": str(file)}).http_port == 1
    assert load(other, {"TIDELINE_SETTINGS_FILE": str(file)}).http_port == 2


def test_default_event_log_is_in_the_state_folder():
    assert load(state_folder="/x/a b").event_log == "sqlite:///x/a%20b/events.db"
    assert load(state_folder="~").state_folder == Path.home()


@pytest.mark.parametrize(
    ("environment", "name", "shown", "expected"),
    [
        ({"TIDELINE_HTTP_PORT": "70000"}, "http_port", "'70000'", "less than or equal to 65535"),
        ({"TIDELINE_SWEEPER__BATCH": "0"}, "sweeper.batch", "'0'", "greater than or equal to 1"),
        ({"TIDELINE_SWEEPER__RETENTION__KEEP_COMMITS": "x"}, "sweeper.retention.keep_commits", "'x'", "a valid integer"),
        ({"TIDELINE_SHARD_COUNT": "2", "TIDELINE_SHARD_INDEX": "2"}, "shard_index", "'2'", "below shard_count (2)"),
        ({"TIDELINE_LOG_FORMAT": "xml"}, "log_format", "'xml'", "'json' or 'console'"),
        ({"TIDELINE_FLEET": "a/b c"}, "fleet", "'a/b c'", "^[A-Za-z0-9_.-]*$"),
        ({"TIDELINE_EVENT_LOG": "events.db"}, "event_log", "'events.db'", "sqlite:///folder/events.db of an event log"),
        ({"TIDELINE_SWEEPER__CONF": "{x"}, "sweeper.conf", "'{x'", "a valid dictionary"),
        ({"TIDELINE_SWEEPER__BATCH": "x" * 500}, "sweeper.batch", "x...", "a valid integer"),
    ],
)
def test_wrong_value_names_setting_value_origin_and_expectation(environment, name, shown, expected):
    error = refused(environment=environment)
    assert error.name == name
    assert error.origin == f"environment variable {list(environment)[-1]}"
    assert shown in error.found
    assert error.origin in error.found
    assert expected in error.expected
    assert len(str(error)) < 400


def test_wrong_value_in_the_file_names_file_and_table(written):
    file = written("[sweeper]\nbatch = 'many'\n")
    error = refused(file)
    assert (error.name, error.origin) == ("sweeper.batch", f"settings file {file}, table [sweeper]")
    assert refused(written("tables = 5\n")).expected == "a list"


def test_further_wrong_settings_are_named_too():
    assert refused(environment={"TIDELINE_HTTP_PORT": "x", "TIDELINE_LOG_LEVEL": "loud"}).remedy == "also wrong: http_port"


def test_what_only_follows_from_another_wrong_setting_is_not_named():
    error = refused(environment={"TIDELINE_STATE_FOLDER": "\0"}, tables=5, state_folder=5)
    assert error.name == "state_folder"
    assert error.remedy == "also wrong: tables"


@pytest.mark.parametrize("folder", ["~absent-user/state", "a\0b"])
def test_a_state_folder_that_cannot_be_a_path_is_refused(folder):
    error = refused(state_folder=folder)
    assert (error.name, error.origin) == ("state_folder", "argument")


def test_missing_setting():
    with pytest.raises(InvalidSetting, match=r"setting 'digger.depth_m' is missing; expected a value"):
        DiggerSettings.load(environment={})


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("TIDELINE_HTP_PORT", "TIDELINE_HTTP_PORT"),
        ("TIDELINE_BATCH", "TIDELINE_SWEEPER__BATCH"),
        ("TIDELINE_SWEEPR__BATCH", "TIDELINE_SWEEPER__BATCH"),
        ("TIDELINE_SWEEPER__RETENTION__KEEP_COMMIT", "TIDELINE_SWEEPER__RETENTION__KEEP_COMMITS"),
        ("TIDELINE_DIGGER__DEPTH", "TIDELINE_DIGGER__DEPTH_M"),
        ("TIDELINE_SWEEPER__batch", "TIDELINE_SWEEPER__BATCH"),
        ("TIDELINE_SWEEPER", None),
        ("TIDELINE_", None),
        ("TIDELINE___", None),
        ("TIDELINE_SWEEPER__BATCH__X", "TIDELINE_SWEEPER__BATCH"),
    ],
)
def test_unknown_variable_is_refused_with_a_suggestion(variable, suggestion):
    error = refused(environment={variable: "hunter22"})
    assert error.name == variable
    assert "hunter22" not in str(error)
    assert suggestion is None or error.remedy == f"did you mean {suggestion}?"


@pytest.mark.parametrize(
    ("text", "name", "remedy"),
    [
        ("http_prt = 1", "http_prt", "did you mean http_port?"),
        ("[sweeper]\nbach = 1", "bach", "did you mean batch?"),
        ("[sweeper.retention]\nkeep = 1", "retention.keep", "did you mean retention.keep_commits?"),
        ("[digger]\ndeep_m = 1", "deep_m", "did you mean depth_m?"),
        (
            "[nowhere]\nx = 1",
            "nowhere",
            "remove or correct the name; docs/settings.md and docs/settings-advanced.md list all settings",
        ),
        (
            "[portal]\nx = 1",
            "portal",
            "remove or correct the name; docs/settings.md and docs/settings-advanced.md list all settings",
        ),
    ],
)
def test_unknown_key_in_the_file_is_refused_with_a_suggestion(written, text, name, remedy):
    error = refused(written(text))
    assert (error.name, error.remedy) == (name, remedy)


def test_section_that_is_no_table(written):
    assert refused(written("sweeper = 1")).expected == "a table [sweeper]"


@pytest.mark.parametrize("content", [b"x = ", b"\xff\xfe", b"#" + b"x" * (1 << 20), b"x = " + b"[" * 5000])
def test_file_that_is_no_toml(tmp_path, content):
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    assert str(path) in refused(path).found


def test_file_that_is_not_there(tmp_path):
    assert "No such file" in refused(tmp_path / "absent.toml").found


def test_variables_of_services_that_are_not_here_are_nobodys_mistake(written, monkeypatch):
    monkeypatch.setattr("tideline_runtime.settings.SERVICES", ("surveyor",))
    settings = load(written("[surveyor]\nanything = 1\n"), {"TIDELINE_SURVEYOR__ANYTHING": "1", "TIDELINE_DIGGER__DEPTH_M": "deep"})
    assert settings.batch == 100


def test_declared_variable_is_known():
    with pytest.raises(InvalidSetting):
        load(environment={"TIDELINE_SWEEPER_PROBE": "1"})
    declare_variable("TIDELINE_SWEEPER_PROBE", "For this test.")
    load(environment={"TIDELINE_SWEEPER_PROBE": "1"})


@pytest.mark.parametrize("name", ["TIDELINE_LOCKS_TOKEN", "TIDELINE_LOCKS_TOKEN_FILE", "TIDELINE_DEBUG"])
def test_variables_of_clients_and_of_the_command_line_stop_no_service(name):
    load(environment={name: "1"})


def test_unknown_argument():
    assert refused(batsh=1).remedy == "did you mean batch?"


def test_secrets_are_not_shown_even_when_wrong():
    error = refused(environment={"TIDELINE_SWEEPER__SECRET": "short"})
    assert "short" not in str(error)
    assert "**********" in error.found
    url = refused(environment={"TIDELINE_LOCKS": "1redis://user:hunter22@host x", "TIDELINE_SHARD_COUNT": "0"})
    assert "hunter22" not in str(url)
    bad_url = refused(environment={"TIDELINE_LOCKS": "re dis://user:hunter22@host"})
    assert "hunter22" not in str(bad_url)


def test_an_empty_token_does_not_mean_an_open_door():
    assert refused(environment={"TIDELINE_HTTP_TOKEN": ""}).name == "http_token"


def test_secret_values_are_known_to_logging():
    settings = load(
        secret="hunter2222",
        http_token="token-of-ten",
        locks="redis://u:in-url@h/0",
        event_log_options={"sasl.password": "in-option"},
    )
    assert set(settings.secret_values()) == {"hunter2222", "token-of-ten", "in-url", "in-option"}
    assert not {"hunter2222", "token-of-ten", "in-url", "in-option"} & set(
        settings_toml(settings).replace('"', ":").replace("@", ":").split(":")
    )


def test_client_options_are_secret_even_when_wrong():
    error = refused(environment={"TIDELINE_EVENT_LOG_OPTIONS": '{"sasl.password": ["hunter22"]}'})
    assert error.name == "event_log_options.sasl.password"
    assert "hunter22" not in str(error)
    assert "hunter22" not in str(refused(environment={"TIDELINE_EVENT_LOG_OPTIONS": "hunter22"}))


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load().batch = 2


def test_print_out_is_a_settings_file_without_secrets(written):
    settings = load(
        environment={"TIDELINE_SWEEPER__CONF": '{"a b": "ü\\"\\\\"}', "TIDELINE_SWEEPER__RETENTION__KEEP_COMMITS": "7"},
        tables=("/a", "/b"),
        locks="redis://user:hunter22@host/0",
        secret="hunter2222",
    )
    text = settings_toml(settings)
    assert "hunter22" not in text
    again = load(written(text))
    assert again.conf == settings.conf
    assert again.retention.keep_commits == 7
    assert again.tables == settings.tables
    assert again.event_log == settings.event_log
    assert "# retention.owner is unset" in text


def test_rows_for_the_documentation():
    rows = {row.name: row for row in setting_rows(SweeperSettings)}
    assert list(rows) == ["batch", "roots", "conf", "retention.keep_commits", "retention.owner", "secret"]
    assert rows["retention.keep_commits"].variable == "TIDELINE_SWEEPER__RETENTION__KEEP_COMMITS"
    assert rows["secret"].is_secret
    assert (rows["roots"].type, rows["batch"].default, rows["batch"].unit) == ("list of path", "100", "files")
    assert setting_rows(DiggerSettings)[0].default == "required"
    assert all(row.description.endswith(".") for row in setting_rows(ServiceSettings))
    assert SweeperSettings in declared_settings()


def test_declarations_are_checked():
    with pytest.raises(InvalidDeclaration, match="without a section"):
        type("Lost", (ServiceSettings,), {"__annotations__": {"x": int}, "x": setting(1, unit="-", description="X.")})
    with pytest.raises(InvalidDeclaration, match="unit and description"):
        type("Bare", (ServiceSettings,), {"section": "bare", "__annotations__": {"x": int}, "x": 1})
    with pytest.raises(InvalidDeclaration, match="name of a shared setting"):
        type(
            "Clash",
            (ServiceSettings,),
            {"section": "locks", "__annotations__": {"x": int}, "x": setting(1, unit="-", description="X.")},
        )


def test_process_environment_is_the_default_source(monkeypatch):
    monkeypatch.setenv("TIDELINE_SWEEPER__BATCH", "7")
    assert SweeperSettings().batch == 7
    assert SweeperSettings(batch=8).batch == 8
    assert json.loads(SweeperSettings().model_dump_json())["batch"] == 7
