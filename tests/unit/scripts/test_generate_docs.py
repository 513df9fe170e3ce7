import importlib.util
from pathlib import Path

import pytest

from tideline_runtime.metrics import declared_metrics
from tideline_runtime.setting_text import setting_rows
from tideline_runtime.settings import ServiceSettings, declared_settings, setting

SCRIPT = Path(__file__).parents[3] / "scripts/generate_docs.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("generate_docs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_hold_every_declaration_and_check_finds_a_difference(script, tmp_path, capsys):
    assert script.main(["--docs", str(tmp_path)]) == 0
    first, others, metrics = ((tmp_path / f"{name}.md").read_text() for name in ("settings", "settings-advanced", "metrics"))
    for row in setting_rows(ServiceSettings):
        line = f"| `{row.name}` | `{row.variable}` |"
        assert (line in first) != (line in others)
    for metric in declared_metrics():
        assert f"| `{metric.name}` | {metric.kind} |" in metrics
    assert script.main(["--docs", str(tmp_path), "--check"]) == 0
    (tmp_path / "metrics.md").write_text(metrics + "more\n")
    capsys.readouterr()
    assert script.main(["--docs", str(tmp_path), "--check"]) == 1
    assert "-more" in capsys.readouterr().err
    assert (tmp_path / "metrics.md").read_text().endswith("more\n")
    (tmp_path / "settings.md").unlink()
    assert script.main(["--docs", str(tmp_path), "--check"]) == 1


def test_sections_and_cells(script):
    class GrinderSettings(ServiceSettings):
        section = "grinder"

        grain: str = setting("a|b", unit="-", description="One | two.")

    page = script.settings_page([ServiceSettings, GrinderSettings], is_advanced=True)
    assert "## [grinder]" in page
    assert '| `grain` | `TIDELINE_GRINDER__GRAIN` | text | `"a\\|b"` | - | One \\| two. |' in page
    assert GrinderSettings in declared_settings()
    script._FIRST_PAGE["grinder"] = ("grian",)
    with pytest.raises(ValueError, match="grian"):
        script.settings_page([ServiceSettings, GrinderSettings], is_advanced=False)
