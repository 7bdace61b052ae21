"""The data source as Spark sees it: `format("odradek")`, once `pyspark_odradek` can be imported where Spark runs.

Spark pickles what is made here and calls it in several processes, which share nothing but options and offsets: one that
looks for sources, one that asks for the columns, one that plans beside its driver, and its Python workers. Each imports
what it needs when it is asked for that: the first query waits for all of them, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from odradek.errors import ConfigError, OdradekError

if TYPE_CHECKING:
    from odradek.ranges.projection import Projection
    from odradek.spark.options import SourceOptions

__all__ = ["OdradekSource"]


class OdradekSource(DataSource):
    """Topics as tables: `odradek.spark.options` has its options and `odradek.spark.schema` its columns."""

    @classmethod
    def name(cls) -> str:
        return "odradek"

    def schema(self) -> StructType:
        """Return all columns. Called at `load`, so that wrong options are errors there, and by `CREATE TABLE`.

        Raises:
            ConfigError, Unsupported: An option cannot work.
        """
        from pyspark.sql.pandas.types import from_arrow_schema

        from odradek.ranges.catalog import find_logs
        from odradek.ranges.projection import Projection, columns
        from odradek.spark.options import parse_source

        options = _of_table(self.options)
        parsed = parse_source(options, streaming=None)
        by_broker = find_logs(parsed).names_brokers
        chosen = columns(headers=parsed.headers, positions=by_broker, errors=parsed.corrupt == "raw")
        schema = from_arrow_schema(Projection(chosen).schema)
        if options is not self.options:  # a table: Spark keeps its columns, but not its options
            schema.fields[0].metadata = {TABLE_OPTIONS: dict(options)}
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        from odradek.spark.readers import BatchReader

        return BatchReader(*self._parse(schema, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from odradek.spark.readers import RefusedStream, StreamReader

        try:
            return StreamReader(*self._parse(schema, streaming=True))
        except OdradekError as error:
            return RefusedStream(error)

    def _parse(self, schema: StructType, *, streaming: bool) -> tuple[SourceOptions, Projection]:
        """Return the options of the query, together with those of its table if it reads one, and its columns."""
        from odradek.spark.options import parse_source
        from odradek.spark.schema import project

        of_table = [field.metadata.get(TABLE_OPTIONS, {}) for field in schema.fields]
        named = {name: value for each in (*of_table, self.options) for name, value in each.items()}
        options = parse_source(named, streaming=streaming)
        fields = ((field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields)
        return options, project(fields, headers=options.headers)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise ConfigError('a topic cannot be overwritten: write with .mode("append")')
        from odradek.spark.sink import BatchWriter

        return BatchWriter(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from odradek.spark.sink import StreamWriter

        return StreamWriter(self.options, schema)


TABLE_OPTIONS = "odradek.options"
"""Key in the metadata of the first column of a table in Spark's catalog: the table's options."""


def _of_table(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options of `CREATE TABLE ... USING odradek OPTIONS (...)` without what Spark adds; others as they are.

    Spark adds the table's properties (provider, owner, ...), and the options once more with a prefix.
    """
    if "provider" not in options:
        return options
    prefix = "option."
    written = {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}
    return {**written, **({"path": options["path"]} if "path" in options else {})}
