"""Proof-carrying maintenance: a service reads back what it wrote and compares an order-free digest with that of what it read.

The comparison is made where the rows are, in the task. The commit carries the receipt: what was compared, and the digest of all
rows.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tideline_table.config import SERVICE_VERIFY, Options
from tideline_table.errors import VerificationFailed
from tideline_table.hudi.write_stats import Proof, WriteStat
from tideline_table.reader.base_file import BaseFileScan
from tideline_table.row_digest import RowDigest, digest_rows, row_hashes, seed_of
from tideline_table.schema.arrow import field_path, top_columns
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)
RECEIPT_KEY = "tideline.receipt"
"""Key of the receipt in the extra metadata of a commit."""
_SHOWN_KEYS = 3


def proven_columns(schema: pa.Schema, ordering_field: str, verify: str) -> tuple[str, ...]:
    """Return the columns that a proof compares: all but the file name, or record key and ordering values."""
    if verify == "full":
        return tuple(name for name in schema.names if name != MetaField.FILE_NAME)
    ordering = [name.strip() for name in ordering_field.split(",")]
    return (MetaField.RECORD_KEY.value, *top_columns(schema, [name for name in ordering if field_path(schema, name)]))


@dataclass(slots=True)
class Prover:
    """The proof of one task: takes what was read and written, and then compares. `schema` includes the meta fields."""

    service: str
    instant: str
    number: int
    schema: pa.Schema
    columns: tuple[str, ...]
    one_thread: bool = True
    """Whether written files are read again by the caller's thread, because other tasks use the other processors."""
    proof_s: float = 0.0
    _started_s: float = 0.0

    @classmethod
    def begin(
        cls,
        service: str,
        instant: str,
        number: int,
        schema: pa.Schema,
        ordering_field: str,
        options: Options,
        *,
        one_thread: bool = True,
    ) -> Prover:
        """Return the proof of a task that begins now."""
        columns = proven_columns(schema, ordering_field, options[SERVICE_VERIFY])
        return cls(service, instant, number, schema, columns, one_thread, _started_s=time.perf_counter())

    def digest(self, rows: pa.Table | pa.RecordBatch) -> RowDigest:
        """Return the digest of rows in memory."""
        started_s = time.perf_counter()
        found = digest_rows(rows, self.columns, seed_of(self.instant))
        self.proof_s += time.perf_counter() - started_s
        return found

    def read_back(self, storage: Storage, path: str) -> RowDigest:
        """Return the digest of the rows of a written file. Raises `CorruptMetadata` if it cannot be read."""
        started_s = time.perf_counter()
        found = RowDigest()
        for batch in BaseFileScan(storage, path, self.schema, one_thread=self.one_thread).filtered(self.columns, None):
            found += digest_rows(batch, self.columns, seed_of(self.instant))
        self.proof_s += time.perf_counter() - started_s
        return found

    def add(self, proof_s: float, task_s: float) -> None:
        """Count the time of another task that worked for the same files."""
        self.proof_s += proof_s
        self._started_s -= task_s

    def check(self, storage: Storage, read: pa.Table, stats: Sequence[WriteStat]) -> list[WriteStat]:
        """Return `stats` with their proofs. Raises `VerificationFailed` if the files do not hold exactly the rows `read`."""
        before = self.digest(read)
        after = [self.read_back(storage, stat.data_path) for stat in stats]
        if sum(after, RowDigest()) != before:
            raise self.failed(storage, read, [stat.path for stat in stats])
        return self.proven(stats, after)

    def proven(self, stats: Sequence[WriteStat], digests: Sequence[RowDigest]) -> list[WriteStat]:
        """Return `stats` with the digests of their files, and the time of the task in equal parts."""
        task_s = time.perf_counter() - self._started_s
        each = max(1, len(stats))
        return [
            replace(stat, proof=Proof(digest, self.proof_s / each, task_s / each))
            for stat, digest in zip(stats, digests, strict=True)
        ]

    def failed(self, storage: Storage, read: pa.Table, paths: Sequence[str]) -> VerificationFailed:
        """Return the error that explains the difference: row counts, columns, and some record keys."""
        names = list(dict.fromkeys([MetaField.RECORD_KEY.value, *self.columns]))
        batches = [b for path in paths for b in BaseFileScan(storage, path, self.schema).filtered(names, None)]
        written = pa.Table.from_batches(batches, schema=pa.schema([self.schema.field(name) for name in names]))
        return self.differs(read, written, paths)

    def differs(self, read: pa.Table, written: pa.Table, paths: Sequence[str]) -> VerificationFailed:
        """Return the error for rows `written` to these files that are not those `read`; both have the record keys and `columns`."""
        seed = seed_of(self.instant)
        differing = [n for n in self.columns if digest_rows(read, [n], seed) != digest_rows(written, [n], seed)]
        missing, strange = (
            _keys(one, np.isin(row_hashes(one, self.columns, seed), row_hashes(other, self.columns, seed), invert=True))
            for one, other in ((read, written), (written, read))
        )
        parts = [f"{read.num_rows} rows were read and {written.num_rows} are in {', '.join(paths) or 'no file'}"]
        parts += [f"columns that differ: {', '.join(differing)}"] if differing else []
        parts += [f"rows of these keys were not written as they were read: {', '.join(missing)}"] if missing else []
        parts += [f"rows of these keys were written and not read: {', '.join(strange)}"] if strange else []
        return VerificationFailed(
            f"{self.service} {self.instant}: task {self.number} changed rows: {'; '.join(parts)}",
            expected="files that hold exactly the rows that were read",
            remedy="nothing was committed and the table is as before; check memory and disks of the machine, keep the files for "
            "inspection and report it",
        )


def _keys(rows: pa.Table, mask: np.ndarray) -> list[str]:
    found = rows.column(MetaField.RECORD_KEY).filter(pa.array(mask))
    shown = [repr(key) for key in found.slice(0, _SHOWN_KEYS).to_pylist()]
    return [*shown, f"and {len(found) - _SHOWN_KEYS} more"] if len(found) > _SHOWN_KEYS else shown


def check_proven(service: str, instant: str, stats: Iterable[WriteStat]) -> None:
    """Raise `VerificationFailed` for a result without the proof that its file holds the rows that it counts."""
    for stat in stats:
        if stat.proof is None or stat.proof.digest.rows != stat.num_writes:
            found = "no proof" if stat.proof is None else f"a proof of {stat.proof.digest.rows} rows"
            raise VerificationFailed(
                f"{service} {instant}: the result for {stat.path} has {found}",
                expected=f"a proof of the {stat.num_writes} rows that it counts",
                remedy="nothing was committed; check that its tasks ran with this release",
            )


def receipt_of(instant: str, stats: Sequence[WriteStat], verify: str) -> dict[str, str]:
    """Return the receipt as extra metadata of the commit, with which any process can read the files again and compare.

    The seed of the digest is `seed_of` the instant. What the proof took is logged and not part of the receipt.
    """
    proofs = [stat.proof for stat in stats if stat.proof is not None]
    total = sum((proof.digest for proof in proofs), RowDigest())
    proof_s, task_s = sum(p.proof_s for p in proofs), sum(p.task_s for p in proofs)
    if task_s:
        _LOGGER.info(
            "%s: proof of %d rows took %.2f s of %.2f s (%.0f %%)", instant, total.rows, proof_s, task_s, 100 * proof_s / task_s
        )
    document = {"verify": verify, "rows": total.rows, "digest": total.text, "files": len(stats)}
    return {RECEIPT_KEY: json.dumps(document, sort_keys=True)}
