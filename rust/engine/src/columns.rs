//! Finished columns, and joining them.

use std::ops::Range;

use crate::Error;
use crate::buffer_pool::{recycle, reserve};
use crate::nullable::{NullableColumn, NullableStrings};
use crate::records::{HeaderColumn, HeaderStrings, NO_TYPE, NONE};

/// What messages or records become: parallel, one element for each.
#[derive(Debug, PartialEq, Eq)]
pub struct Columns {
    /// Values.
    pub values: NullableColumn,
    /// Where each entry starts; from 0.8 on the offset.
    pub positions: Vec<i64>,
    /// Where to resume behind each.
    pub next_positions: Vec<i64>,
    /// The index of each 0.7 message in its wrapper; None: all are 0.
    pub inner_indexes: Option<Vec<i32>>,
    /// Keys; None: there are none.
    pub keys: Option<NullableColumn>,
    /// Headers; None: there are none.
    pub headers: Option<HeaderColumn>,
    /// Timestamps and their types; None: no record's format has them.
    pub timestamps: Option<(Vec<i64>, Vec<i8>)>,
}

/// Some rows of columns.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    /// All rows.
    pub columns: &'a Columns,
    /// Which of them.
    pub range: Range<usize>,
}

impl Columns {
    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keep the memory for other columns.
    pub fn recycle(self) {
        self.values.recycle();
        recycle(self.positions);
        recycle(self.next_positions);
        if let Some(inner_indexes) = self.inner_indexes {
            recycle(inner_indexes);
        }
        if let Some(keys) = self.keys {
            keys.recycle();
        }
        if let Some(HeaderColumn { offsets, names, values }) = self.headers {
            recycle(offsets);
            names.recycle();
            values.recycle();
        }
        if let Some((timestamps, _)) = self.timestamps {
            recycle(timestamps);
        }
    }

    /// A copy of all rows of the parts, in order. A column that only some parts have says for the rows of the others
    /// what its absence means.
    pub fn concat(parts: &[Rows<'_>]) -> Result<Self, Error> {
        let rows = parts.iter().map(|part| part.range.len()).fold(0, usize::saturating_add);
        let has = |column: fn(&Columns) -> bool| parts.iter().any(|part| column(part.columns));
        let positions = longs(parts, rows, |part| Some(&part.positions))?;
        let next_positions = longs(parts, rows, |part| Some(&part.next_positions))?;
        let inner_indexes = if has(|part| part.inner_indexes.is_some()) {
            let mut inner_indexes = Vec::new();
            reserve(&mut inner_indexes, rows)?;
            extend(&mut inner_indexes, parts, 0, |part| part.inner_indexes.as_ref())?;
            Some(inner_indexes)
        } else {
            None
        };
        let keys =
            if has(|part| part.keys.is_some()) { Some(strings(parts, rows, |part| part.keys.as_ref())?) } else { None };
        let headers = if has(|part| part.headers.is_some()) { Some(headers(parts)?) } else { None };
        let timestamps = if has(|part| part.timestamps.is_some()) {
            let mut types = Vec::new();
            types.try_reserve(rows)?;
            extend(&mut types, parts, NO_TYPE, |part| part.timestamps.as_ref().map(|(_, types)| types))?;
            Some((longs(parts, rows, |part| part.timestamps.as_ref().map(|(timestamps, _)| timestamps))?, types))
        } else {
            None
        };
        let values = strings(parts, rows, |part| Some(&part.values))?;
        Ok(Columns { values, positions, next_positions, inner_indexes, keys, headers, timestamps })
    }
}

impl Rows<'_> {
    /// Bytes of all values, keys, and names and values of headers; None: there are no such rows.
    #[must_use]
    pub fn payload_bytes(&self) -> Option<usize> {
        let Columns { values, keys, headers, .. } = self.columns;
        let mut bytes = values.offsets.range(self.range.clone())?.len();
        if let Some(keys) = keys {
            bytes = bytes.saturating_add(keys.offsets.range(self.range.clone())?.len());
        }
        if let Some(HeaderColumn { names, values, .. }) = headers {
            let pairs = self.pairs()?;
            let names = names.offsets.range(pairs.clone())?.len();
            bytes = bytes.saturating_add(names).saturating_add(values.offsets.range(pairs)?.len());
        }
        Some(bytes)
    }

    /// Which headers there are; None: the rows have no such column.
    #[must_use]
    pub fn pairs(&self) -> Option<Range<usize>> {
        let ends = &self.columns.headers.as_ref()?.offsets;
        let (start, end) = (*ends.get(self.range.start)?, *ends.get(self.range.end)?);
        Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }
}

type Pick<T> = fn(&Columns) -> Option<&Vec<T>>;

/// Append a column of all parts, with `absent` for the rows of a part without it. There is room for all rows.
fn extend<T: Copy>(into: &mut Vec<T>, parts: &[Rows<'_>], absent: T, column: Pick<T>) -> Result<(), Error> {
    for Rows { columns, range } in parts {
        match column(columns) {
            Some(items) => into.extend_from_slice(items.get(range.clone()).ok_or(Error::Offsets)?),
            None => into.resize(into.len().saturating_add(range.len()), absent),
        }
    }
    Ok(())
}

fn longs(parts: &[Rows<'_>], rows: usize, column: Pick<i64>) -> Result<Vec<i64>, Error> {
    let mut made = Vec::new();
    reserve(&mut made, rows)?;
    extend(&mut made, parts, NONE, column)?;
    Ok(made)
}

fn strings(
    parts: &[Rows<'_>],
    rows: usize,
    column: fn(&Columns) -> Option<&NullableColumn>,
) -> Result<NullableColumn, Error> {
    let size = |part: &Rows<'_>| column(part.columns)?.offsets.range(part.range.clone()).map(|bytes| bytes.len());
    let mut made = NullableStrings::default();
    made.reserve(parts.iter().filter_map(size).fold(0, usize::saturating_add), rows)?;
    for Rows { columns, range } in parts {
        match column(columns) {
            Some(strings) => made.extend_rows(strings, range.clone())?,
            None => made.extend_nulls(range.len())?,
        }
    }
    Ok(made.into_column())
}

fn headers(parts: &[Rows<'_>]) -> Result<HeaderColumn, Error> {
    let mut made = HeaderStrings::empty(0)?;
    for part in parts {
        match &part.columns.headers {
            Some(headers) => {
                let pairs = part.pairs().ok_or(Error::Offsets)?;
                made.extend_rows(headers, part.range.clone(), pairs)?;
            }
            None => made.extend_empty(part.range.len())?,
        }
    }
    Ok(made.into_column())
}
