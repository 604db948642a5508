#!/usr/bin/env python3
"""Checks that pyarrow, DuckDB and Polars read every table of a recording and agree on it.

    check_readers.py GPUMON

Records the simulated GPU for two seconds, then reads each table three ways and compares names of
columns, numbers of rows, sums of every numeric column, nulls, and the type of time stamps. Needs the
packages of readers.txt.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb
import polars
import pyarrow
import pyarrow.compute as compute
import pyarrow.parquet as parquet

TABLES = ("fast", "ring", "slow", "counter", "events", "process")


def duck(path: Path, what: str) -> tuple:
    return duckdb.execute(f"SELECT {what} FROM read_parquet('{path}')").fetchone()


def check(path: Path, simulated: bytes = b"true") -> int:
    arrow = parquet.read_table(path)
    metadata = parquet.read_metadata(path).metadata
    assert metadata[b"gpumon.simulated"] == simulated, f"{path}: {metadata}"
    frame = polars.read_parquet(path)
    duck_columns = duckdb.execute(f"DESCRIBE SELECT * FROM read_parquet('{path}')").fetchall()
    assert arrow.column_names == frame.columns == [column[0] for column in duck_columns], path
    assert arrow.num_rows == frame.height == duck(path, "count(*)")[0], path
    for field, (_, duck_type, *_) in zip(arrow.schema, duck_columns):
        column = arrow[field.name]
        nulls = column.null_count
        assert frame[field.name].null_count() == nulls, (path, field)
        assert duck(path, f'count(*) - count("{field.name}")')[0] == nulls, (path, field)
        if pyarrow.types.is_timestamp(field.type):
            assert (field.type.unit, field.type.tz) == ("us", "UTC"), field
            assert frame[field.name].dtype == polars.Datetime("us", "UTC"), frame[field.name].dtype
            assert duck_type == "TIMESTAMP WITH TIME ZONE", duck_type
        elif pyarrow.types.is_integer(field.type):
            assert pyarrow.types.is_signed_integer(field.type), field
            total = compute.sum(column).as_py()
            assert frame[field.name].cast(polars.Int64).sum() == (total or 0), (path, field)
            assert duck(path, f'sum("{field.name}")')[0] == total, (path, field)
    return arrow.num_rows


def main(gpumon: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        name = Path(scratch) / "recording"
        command = [gpumon, "record", "--device", "sim:h200", "-o", str(name), "--duration", "2", "--rate", "100"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = {table: check(name / f"{table}.parquet") for table in TABLES}
        assert rows["fast"] > 190 and rows["ring"] > 95 and rows["slow"] > 15 and rows["counter"] > 1, rows
        versions = f"pyarrow {pyarrow.__version__}, DuckDB {duckdb.__version__}, Polars {polars.__version__}"
        print(f"{versions} agree on {rows}")


if __name__ == "__main__":
    main(sys.argv[1])
