"""Tables that people make with Spark SQL."""

from __future__ import annotations

from collections.abc import Callable

from tests.conformance.matrix import Kind, Topic
from tests.conformance.stories.story import Maker, Step, Story


def sql(*texts: str) -> Callable[[Maker], None]:
    """Run statements, one after the other."""

    def run(maker: Maker) -> None:
        for text in texts:
            maker.sql(text)

    return run


def create(columns: str, properties: str = "", partitioned: str = "") -> Callable[[Maker], None]:
    """CREATE TABLE takes the version from the table's properties, not from the session."""

    def run(maker: Maker) -> None:
        kind = "cow" if maker.story.kind is Kind.COW else "mor"
        named = f"type = '{kind}', hoodie.write.table.version = '{maker.story.version}'{properties}"
        maker.sql(f"create table {{table}} ({columns}) using hudi {partitioned} tblproperties ({named}) location '{{base}}'")

    return run


def _both(*parts: Callable[[Maker], None]) -> Callable[[Maker], None]:
    def run(maker: Maker) -> None:
        for part in parts:
            part(maker)

    return run


_COLUMNS = "id int, name string, price decimal(10, 2), ts bigint, at timestamp, tags array<string>, day date"
_ROWS = ", ".join(
    f"({n}, 'n{n}', {n}.25, 1000, timestamp '2024-05-01 10:11:12.5', array('a', 'b{n}'), date '2024-05-0{1 + n % 2}')"
    for n in range(1, 9)
)


STATEMENTS = (
    Step(
        "insert into",
        Topic.INSERT,
        _both(
            create(_COLUMNS, ", primaryKey = 'id', preCombineField = 'ts'", "partitioned by (day)"),
            sql(f"insert into {{table}} values {_ROWS}"),
        ),
    ),
    Step("update", Topic.UPSERT, sql("update {table} set price = price * 2, ts = 1001 where id in (2, 3)")),
    Step(
        "merge into",
        Topic.UPSERT,
        sql(
            "merge into {table} t using (select 3 as id, 'm3' as name, 1.5 as price, 1002L as ts, date '2024-05-02' as day union "
            "all"
            " select 20, 'm20', 2.5, 1002L, date '2024-05-01' union all select 4, 'gone', 0.0, 1002L, date '2024-05-01') s on "
            "t.id = s.id"
            " when matched and s.name = 'gone' then delete"
            " when matched then update set id = s.id, name = s.name, price = s.price, ts = s.ts"
            " when not matched then insert (id, name, price, ts, at, tags, day) values (s.id, s.name, s.price, s.ts, null, "
            "array(), s.day)"
        ),
    ),
    Step("delete from", Topic.DELETE, sql("delete from {table} where id = 5 or price > 100")),
    Step("column added", Topic.SCHEMA_EVOLUTION, sql("alter table {table} add columns (extra struct<a: int, b: string>)")),
    Step("updated after", Topic.SCHEMA_EVOLUTION, sql("update {table} set extra = named_struct('a', id, 'b', name) where id < 3")),
    Step(
        "overwritten",
        Topic.INSERT_OVERWRITE,
        sql("insert overwrite {table} partition (day = '2024-05-01') select 30, 'o', 1.0, 1L, null, null, null"),
    ),
    Step("partition dropped", Topic.INSERT_OVERWRITE, sql("alter table {table} drop partition (day = '2024-05-02')")),
)


KEYLESS = (
    Step(
        "insert into without key",
        Topic.INSERT,
        _both(create("name string, n int"), sql("insert into {table} values ('a', 1), ('b', 2), ('a', 1)")),
    ),
    Step("inserted again", Topic.INSERT, sql("insert into {table} values ('c', 3)")),
    Step("update without key", Topic.UPSERT, sql("update {table} set n = 10 where name = 'b'")),
    Step("delete without key", Topic.DELETE, sql("delete from {table} where name = 'c'")),
)


# Parts of records have stories of their own.
WHOLE_RECORDS = {"hoodie.spark.sql.merge.into.partial.updates": "false"}
STORIES = (
    Story("cow-sql", Kind.COW, STATEMENTS),
    Story("mor-sql", Kind.MOR, STATEMENTS),
    Story("mor-sql-9", Kind.MOR, STATEMENTS, WHOLE_RECORDS, version=9),
    Story("cow-keyless", Kind.COW, KEYLESS),
    Story("mor-keyless", Kind.MOR, KEYLESS),
)
