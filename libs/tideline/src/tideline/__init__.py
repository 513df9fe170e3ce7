"""Create, open, write, read and query Apache Hudi tables from Python, and run their table services.

    import tideline

    table = tideline.create("/tmp/trips", schema=rows.schema, key="id", partition="day", ordering="updated_at")
    table.upsert(rows)
    table.read(columns=["id", "fare"], where="fare > 100")

Rows are passed in as any object with the Arrow PyCapsule interface and are returned as Arrow. This package only translates between
Python users and the engine (`tideline_table`). It makes no decisions about tables.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
