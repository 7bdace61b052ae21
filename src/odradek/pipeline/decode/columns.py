"""Columns of decoded values: what a reader gives is checked, converted to the declared types, and put back into order.

Fast readers give whole columns of wide types: 64-bit integers, texts for times, long decimals. A conversion never
changes a value: a row that cannot be converted exactly is marked, and read again by the exact reader of single records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial, reduce
from itertools import chain, compress, pairwise
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute
import pyarrow.types as pt

from odradek.pipeline.decode.dead import Convert, DeadLetter, UndecodableError
from odradek.pipeline.decode.fields import MILLISECONDS, TIME, decimal_of_bytes, limits_of, text_parser

__all__ = ["Array", "Record", "RowCollector", "ValueDecoder", "Values", "fit_each", "fit_rows", "pc"]

pc: Any = pyarrow.compute
concat_batches: Any = pa.concat_batches  # type: ignore[attr-defined]  # the stubs lack it

Array: TypeAlias = Any  # of pyarrow; the stubs have a type per kind of values, but here the kinds depend on the data
Mask: TypeAlias = Any  # a boolean array that is true in wrong rows; None: there are none
Record: TypeAlias = Mapping[str, Any]  # fields as pyarrow takes them, times as integers since the epoch
Read: TypeAlias = Callable[[bytes], Record]  # decodes one value, or raises UndecodableError

SLICE_BYTES = 2 << 20  # of values that are decoded at a time, about, which bounds the memory; more are not faster


class Values(NamedTuple):
    """The decoded values of an array."""

    rows: pa.RecordBatch  # the good ones, in order
    dead: Mapping[int, DeadLetter]  # the others, by their indexes in the array


class ValueDecoder:
    """Decoder for values of one kind, with the columns of its rows. Subclasses have at least `_read`."""

    def __init__(self, declared: pa.Schema) -> None:
        self.declared, self.schema = declared, stored_schema(declared)

    def decode(self, values: Array) -> Values:
        """Decode an array of binary without nulls."""
        rows = RowCollector(self.declared, self._read)
        count = max(1, len(values) * SLICE_BYTES // max(1, values.nbytes))
        for start in range(0, len(values), count):
            part = values.slice(start, count)
            self._add(rows, range(start, start + len(part)), part)
        return rows.finish()

    def _add(self, rows: RowCollector, indexes: Sequence[int], values: Array) -> None:
        """Decode a slice of the values, which have these indexes."""
        rows.read(indexes, values)

    def _read(self, value: bytes) -> Record:
        """Decode one value exactly, or raise UndecodableError."""
        raise NotImplementedError


class RowCollector:
    """Collects decoded values, and puts rows that are decoded out of order back into order; `read` reads exactly."""

    def __init__(self, declared: pa.Schema, read: Read) -> None:
        self.dead: dict[int, DeadLetter] = {}
        self._declared, self._stored, self._read = declared, stored_schema(declared), read
        self._indexes: list[Sequence[int]] = []
        self._batches: list[pa.RecordBatch] = []

    def add(self, indexes: Sequence[int], rows: pa.RecordBatch) -> None:
        """Add rows with their indexes, which ascend."""
        if rows.num_rows:
            self._indexes.append(indexes)
            self._batches.append(rows)

    def add_columns(self, indexes: Sequence[int], values: Array, columns: list[Array], *, finite: bool = False) -> None:
        """Add what a fast reader made of values, in wide types; wrong rows are read exactly."""
        rows, wrong = fit_rows(columns, self._declared, finite=finite)
        if wrong is not None:
            right = pc.invert(wrong)
            rows = rows.filter(right)
            indexes, _ = self.keep(right, indexes, values)
        self.add(indexes, rows)

    def keep(self, right: Array, indexes: Sequence[int], values: Array) -> tuple[Sequence[int], Array]:
        """Return the values where a boolean array is true; the others are read exactly."""
        wrong = pc.invert(right)
        if pc.any(wrong).as_py():
            self.read(list(compress(indexes, wrong.to_pylist())), values.filter(wrong))
            indexes, values = list(compress(indexes, right.to_pylist())), values.filter(right)
        return indexes, values

    def read_wide(self, indexes: Sequence[int], values: Array, fast: Read, wide: pa.Schema) -> None:
        """Read values one by one in wide types; those that have others are read exactly."""
        records: list[Record] = []
        right: list[bool] = []
        for value in values.to_pylist():
            try:
                records.append(fast(value))
                right.append(True)
            except Exception:  # damaged bytes raise many kinds of errors
                right.append(False)
        indexes, values = self.keep(pa.array(right, pa.bool_()), indexes, values)
        try:
            columns = _columns(records, wide)
        except (pa.ArrowException, ValueError, OverflowError, TypeError):  # one does not fit even the wide types
            self.read(indexes, values)
        else:
            self.add_columns(indexes, values, columns)

    def read(self, indexes: Sequence[int], values: Array) -> None:
        """Read values one by one, exactly."""
        records: dict[int, Record] = {}
        for index, value in zip(indexes, values.to_pylist(), strict=True):
            try:
                records[index] = self._read(value)
            except UndecodableError as error:
                self.dead[index] = error.letter
        columns = _columns(records.values(), self._stored)
        self.add(list(records), pa.RecordBatch.from_arrays(columns, schema=self._stored))

    def finish(self) -> Values:
        """Return all rows in order."""
        if not self._batches:
            return Values(pa.RecordBatch.from_pylist([], self._stored), self.dead)
        rows = concat_batches(self._batches) if len(self._batches) > 1 else self._batches[0]
        if any(first[-1] > second[0] for first, second in pairwise(self._indexes)):
            indexes = list(chain.from_iterable(self._indexes))
            rows = rows.take(pc.sort_indices(pa.array(indexes, pa.int64())))
        return Values(rows, self.dead)


def _columns(records: Collection[Record], schema: pa.Schema) -> list[Array]:
    return [pa.array([record[field.name] for record in records], field.type) for field in schema]


# ---- whole columns to their declared types -------------------------------------------------------------------


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of rows: without NOT NULL inside of structs, which Arrow's writers refuse below a null one."""
    return pa.schema([field.with_type(_stored(field.type)) for field in schema])


def _stored(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(field.name, _stored(field.type)) for field in kind])
    if isinstance(kind, pa.ListType):
        return pa.list_(_stored(kind.value_type))
    return pa.map_(kind.key_type, _stored(kind.item_type)) if isinstance(kind, pa.MapType) else kind


def fit_rows(columns: list[Array], schema: pa.Schema, *, finite: bool = False) -> tuple[pa.RecordBatch, Mask]:
    """Return columns of readers, without offset, in the types of `stored_schema`, and the rows that are wrong.

    With `finite`, infinity and NaN are wrong, as in JSON, where a number that is too large becomes infinity.
    """
    fitted, wrong = _fit_all(columns, schema, finite)
    if wrong is not None and not pc.any(wrong).as_py():
        wrong = None
    return pa.RecordBatch.from_arrays(fitted, schema=stored_schema(schema)), wrong


def _fit_all(columns: Iterable[Array], fields: Iterable[Any], finite: bool) -> tuple[list[Array], Mask]:
    fitted = [_fit(column, field, finite) for column, field in zip(columns, fields, strict=True)]
    return [array for array, _ in fitted], _any_of([mask for _, mask in fitted])


def _any_of(masks: list[Mask]) -> Mask:
    present = [mask for mask in masks if mask is not None]
    return reduce(pc.or_, present) if present else None


def _fit(array: Array, field: pa.Field[Any], finite: bool) -> tuple[Array, Mask]:
    """Return an array in a field's type, and the wrong rows."""
    kind, nulls = field.type, array.is_null() if array.null_count else None
    if isinstance(kind, pa.StructType):
        children, wrong = _fit_all(array.flatten(), kind, finite)  # which are null where the struct is
        fields = [pa.field(each.name, child.type) for each, child in zip(kind, children, strict=True)]
        fitted: Array = pa.StructArray.from_arrays(children, fields=fields, mask=nulls)
        if wrong is not None and nulls is not None:
            wrong = pc.and_not(wrong, nulls)  # a null struct has no children that must not be null
    elif isinstance(kind, pa.ListType | pa.MapType):
        fitted, wrong = _fit_lists(array, kind, nulls, finite)
    else:
        fitted, wrong = _fit_leaf(array, kind, finite)
    return fitted, wrong if field.nullable else _any_of([wrong, nulls])


def _fit_lists(array: Array, kind: Any, nulls: Mask, finite: bool) -> tuple[Array, Mask]:
    is_map = isinstance(kind, pa.MapType)
    items, field = (array.items, kind.item_field) if is_map else (array.values, kind.value_field)
    fitted, wrong = _fit(items, field, finite)
    if wrong is not None:
        parents = pc.list_parent_indices(pa.ListArray.from_arrays(array.offsets, items)).filter(wrong)
        wrong = pc.is_in(pa.array(range(len(array)), parents.type), value_set=parents)
    parts = (array.offsets, array.keys, fitted) if is_map else (array.offsets, fitted)
    return type(array).from_arrays(*parts, mask=nulls), wrong


def _fit_leaf(array: Array, kind: pa.DataType, finite: bool) -> tuple[Array, Mask]:
    source = array.type
    if pt.is_floating(kind) and finite and not pc.all(pc.is_finite(array)).as_py():
        return array, pc.fill_null(pc.invert(pc.is_finite(array)), False)
    if pt.is_timestamp(source) or pt.is_time(source) or (pt.is_integer(source) and source != kind):
        return _fit_numbers(array, kind)
    if source == kind:
        return array, None
    if pt.is_decimal(source):
        try:
            return array.cast(kind), None
        except pa.ArrowInvalid:  # which does not say where
            array = array.cast(pa.string())
    if pt.is_temporal(kind):
        return _fit_times(array, kind)
    parse = text_parser(kind) if pt.is_string(array.type) else partial(decimal_of_bytes, kind=kind)
    return fit_each(array, kind, parse)


def _all_within(numbers: Array, limits: tuple[int, int]) -> bool:
    bounds = pc.min_max(numbers).as_py()
    return bounds["min"] is None or limits[0] <= bounds["min"] <= bounds["max"] <= limits[1]


def _fit_numbers(array: Array, kind: pa.DataType) -> tuple[Array, Mask]:
    """Convert numbers to narrower ones, or to times."""
    limits, wrong = limits_of(kind, 1000 if array.type in MILLISECONDS else 1), None
    plain = pa.int32() if pt.is_time32(array.type) else pa.int64()
    numbers = array if pt.is_integer(array.type) else array.cast(plain)
    if not _all_within(numbers, limits):
        wrong = pc.fill_null(pc.or_(pc.less(numbers, limits[0]), pc.greater(numbers, limits[1])), False)
        numbers = pc.if_else(wrong, None, numbers)
    if not pt.is_integer(array.type):
        return numbers.cast(array.type).cast(kind), wrong
    return (numbers.cast(pa.int32()) if kind.bit_width == 32 else numbers).cast(kind), wrong


def fit_each(values: Array, kind: pa.DataType, parse: Convert) -> tuple[Array, Mask]:
    """Convert values one by one; return them, null where it is not possible, and where that is."""
    wrong = [False] * len(values)
    parsed: list[Any] = values.to_pylist()
    for row, value in enumerate(parsed):
        if value is not None:
            try:
                parsed[row] = parse(value)
            except UndecodableError:
                parsed[row], wrong[row] = None, True
    return pa.array(parsed, kind), pa.array(wrong) if any(wrong) else None


_DATE = r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
_TIME = r"(?:[T ](?:[01]\d|2[0-3])(?::[0-5]\d(?::[0-5]\d(?:\.\d{1,6})?)?)?)?(?:Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?"
"""Texts that Arrow may convert. It also checks whether a day exists and the type has an offset."""


def _fit_times(texts: Array, kind: pa.DataType) -> tuple[Array, Mask]:
    """Convert texts as Arrow does; those that it would not take, which may be good, are marked."""
    times, strange = _cast_times(texts, kind), None
    if times is None:
        usual = f"^{_DATE}$" if pt.is_date(kind) else f"^{_DATE}{_TIME}$"
        strange = pc.fill_null(pc.invert(pc.match_substring_regex(texts, usual)), False)
        times = _cast_times(pc.if_else(strange, None, texts), kind)
    return (times, strange) if times is not None else fit_each(texts, kind, text_parser(kind))


def _cast_times(texts: Array, kind: pa.DataType) -> Array | None:
    """Return texts as times; None if a text is no time, or is written in another form than the others."""
    for read_as in (kind, pa.timestamp("us")) if kind == TIME else (kind,):  # without an offset, a text is in UTC
        try:
            times = texts.cast(read_as)
        except pa.ArrowInvalid:  # which does not say where
            continue
        numbers = times.cast(pa.int32() if pt.is_date(kind) else pa.int64())
        if _all_within(numbers, limits_of(kind)):  # Arrow accepts times before the year 1
            return numbers.cast(kind)
    return None
