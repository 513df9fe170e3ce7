"""Each protection of the catalogue is still in the source, and a test notices when it is gone."""

import pytest
from tests.weakenings.catalogue import WEAKENINGS
from tests.weakenings.plugin import weakened
from tests.weakenings.proof import is_noticed

NAMES = [pytest.param(name, marks=pytest.mark.real) if found.is_real else name for name, found in WEAKENINGS.items()]


@pytest.mark.parametrize("name", WEAKENINGS)
def test_the_source_has_the_protection_once(name):
    found = WEAKENINGS[name]
    compile(weakened(found.file, found.code, found.instead), found.file, "exec")


@pytest.mark.parametrize("name", NAMES)
def test_a_test_notices(name):
    assert is_noticed(WEAKENINGS[name])
