"""Arrow tables as the data frames of other libraries, where these are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetoscope._errors import MissingDependencyError

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


def to_pandas(table: pyarrow.Table) -> pandas.DataFrame:
    """Return the table as a pandas data frame; integers with nulls become pandas' nullable integers."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependencyError(
            "to_pandas() needs pandas: install it with `pip install pandas`"
        ) from error
    import pyarrow as pa

    nullable = {pa.int8(): pd.Int8Dtype(), pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}
    with_nulls = [
        field.name for field in table.schema if field.type in nullable and table.column(field.name).null_count
    ]
    if not with_nulls:
        plain: pandas.DataFrame = table.to_pandas()
        return plain
    # pandas would turn these into floats, which cannot hold every nanosecond.
    whole = table.select(with_nulls).to_pandas(types_mapper=nullable.get)
    others = table.drop_columns(with_nulls).to_pandas()
    frame: pandas.DataFrame = pd.concat([others, whole], axis=1)[table.column_names]
    return frame


def to_polars(table: pyarrow.Table) -> polars.DataFrame:
    """Return the table as a polars data frame."""
    try:
        import polars as pl
    except ImportError as error:
        raise MissingDependencyError(
            "to_polars() needs polars: install it with `pip install polars`"
        ) from error

    return pl.DataFrame(table)
