"""Every parser on bytes that anybody may have written: a result or a typed error, soon and in little memory (5,000 inputs each with
SAMPLE_STEP=1, as nightly; `make fuzz` tries more)."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from itertools import islice

import pytest
from tests.fuzz.conftest import ROOT, RUNS
from tests.fuzz.mutation import mutations
from tests.fuzz.target import Target, typed
from tests.fuzz.targets import TARGETS
from tests.fuzz.verdict import MAX_CPU_S, MAX_MEMORY_BYTES, Verdict, tried

from tideline_table.errors import CorruptMetadata


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TARGETS)
def test_every_parser_keeps_its_word(name, verdicts):
    assert name in verdicts, "its process ended before it: a crash, or more memory than it may have"
    verdict = verdicts[name]
    assert verdict["findings"] == {}
    assert verdict["inputs"] == verdict["taken"] + verdict["refused"] == RUNS
    assert verdict["slowest_s"] <= MAX_CPU_S
    assert verdict["more_bytes"] <= MAX_MEMORY_BYTES
    # Neither nonsense alone nor sound files alone.
    assert verdict["taken"] >= RUNS // 50


@pytest.mark.parametrize("name", TARGETS)
def test_what_inputs_are_made_of_is_sound(name):
    for seed in TARGETS[name].seeds:
        TARGETS[name].parse(seed)


def test_inputs_repeat():
    target = TARGETS["timeline-json"]

    def digest(seed):
        return hashlib.sha256(b"".join(islice(mutations(target, seed), 500))).hexdigest()

    assert digest(1) == digest(1) != digest(2)


def _fails(content):
    if len(content) > 3:
        raise KeyError(content)
    raise CorruptMetadata("nothing", expected="something")


def _hides(content):
    raise CorruptMetadata("cannot be read (MemoryError: )", expected="something")


def test_faults_are_found():
    verdict = tried(Target("x", _fails, (b"abc",)), 200)
    (finding,) = verdict.findings.values()
    assert finding.place.startswith("KeyError test_parsers.py")
    assert len(finding.content) > 3
    assert verdict.untyped > 0 < verdict.refused
    assert verdict.inputs == 200
    assert [f.place for f in tried(Target("x", _hides, (b"",)), 5).findings.values()] == ["memory"]
    with pytest.raises(AssertionError, match="explains nothing"):
        typed(_explains_nothing)


def _explains_nothing():
    raise CorruptMetadata("", expected="")


def test_slow_inputs_are_found():
    verdict = Verdict(Target("x", lambda content: _burn(content[0]), ()))
    assert verdict.take(b"\0")
    assert not verdict.take(b"\1")
    assert [*verdict.findings] == ["slow"]


def _burn(seconds):
    end = time.process_time() + 1.1 * seconds
    while time.process_time() < end:
        pass


def test_memory_is_bounded():
    """Asking is enough: nothing here touches the bytes."""
    asks = "from tests.fuzz.verdict import allow_memory; import numpy; allow_memory(); numpy.empty({} * 2**20, dtype='u1')"
    outcomes = [
        subprocess.run([sys.executable, "-c", asks.format(mb)], cwd=ROOT, capture_output=True, check=False) for mb in (400, 600)
    ]
    assert outcomes[0].returncode == 0, outcomes[0].stderr.decode()
    assert b"MemoryError" in outcomes[1].stderr
