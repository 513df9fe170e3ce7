"""Contents of delete blocks of versions 1 and 2, as releases of Apache Hudi serialised them (tests/fixtures/README.md)."""

import base64
import functools
import json
import struct

from tests.unit.table.fixtures import FIXTURES


@functools.cache
def _written():
    return json.loads((FIXTURES / "kryo_deletes/written.json").read_text())


def kryo_names(version):
    return sorted(_written()[str(version)])


def kryo_data(version, name):
    return base64.b64decode(_written()[str(version)][name])


def kryo_content(version, name):
    data = kryo_data(version, name)
    return struct.pack(">ii", version, len(data)) + data
