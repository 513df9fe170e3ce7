"""`tideline sql`."""

from __future__ import annotations


def test_statements_change_and_query_a_table(done, filled):
    named = ("--table", f"trips={filled}")
    report = done("sql", "update trips set n = n * 10 where city = 'Paris'", *named, "--json").document
    assert (report["rows_updated"], report["rows_deleted"], report["attempts"]) == (3, 0, 1)
    assert "rows deleted       1" in done("sql", f'delete from "{filled}" where n = 10').text
    assert done("sql", "select id, n from trips order by id", *named).rows == [
        {"id": "b", "n": 200},
        {"id": "c", "n": 3},
        {"id": "d", "n": 40},
    ]


def test_a_query_is_written_to_a_file(done, filled, tmp_path):
    done("sql", "select max(n) as most from trips", "--table", f"trips={filled}", "--output", tmp_path / "most.csv")
    assert (tmp_path / "most.csv").read_text().split() == ['"most"', "20"]


def test_errors_are_lines(cli, filled):
    outcome = cli("sql", "truncate trips", "--table", f"trips={filled}")
    assert outcome.code == 2
    assert "expected SELECT, INSERT INTO, UPDATE, DELETE FROM or MERGE INTO" in outcome.stderr
    refused = cli("sql", f'delete from "{filled}" where n = 1', "--output", "x.csv")
    assert refused.code == 2
    assert cli("sql", "select count(*) as n from t where n = 1", "--table", f"t={filled}").rows == [{"n": 1}]
