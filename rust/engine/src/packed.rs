//! Reading of packed byte strings, and how many strings fit into a limit.

use crate::{Error, Offset};

/// `data[offsets[i]..offsets[i + 1]]` for each i, or an error where those do not ascend within `data`.
pub fn packed<'a, O: Offset>(
    offsets: &'a [O],
    data: &'a [u8],
) -> impl Iterator<Item = Result<&'a [u8], Error>> + Clone {
    offsets.windows(2).map(move |ends| slice(ends, data).ok_or(Error::Offsets))
}

/// The same strings, with None for each row whose byte of `validity` is 0. A row beyond `validity` is not null.
pub fn nullable<'a>(
    strings: impl Iterator<Item = Result<&'a [u8], Error>> + Clone,
    validity: &'a [u8],
) -> impl Iterator<Item = Result<Option<&'a [u8]>, Error>> + Clone {
    let valid = validity.iter().map(|valid| *valid != 0).chain(std::iter::repeat(true));
    strings.zip(valid).map(|(string, valid)| string.map(|string| valid.then_some(string)))
}

#[inline]
fn slice<'a, O: Offset>(ends: &[O], data: &'a [u8]) -> Option<&'a [u8]> {
    let &[start, end] = ends else {
        return None;
    };
    data.get(usize::try_from(start.into()).ok()?..usize::try_from(end.into()).ok()?)
}

/// The limits of `fit`, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For all rows that fit together.
    pub max_bytes: i64,
    /// What each row takes beyond its length.
    pub row_bytes: i64,
    /// For the length of one row.
    pub max_row: i64,
}

/// How many strings of these lengths fit, from the first on, and the sum of their lengths. A length of None never fits.
pub fn fit(
    lengths: impl Iterator<Item = Result<Option<usize>, Error>>,
    limits: Limits,
) -> Result<(usize, usize), Error> {
    let (mut rows, mut sum, mut left) = (0usize, 0usize, limits.max_bytes);
    for length in lengths {
        let Some(length) = length? else { break };
        let bytes = i64::try_from(length)?;
        left = left.saturating_sub(bytes).saturating_sub(limits.row_bytes);
        if bytes > limits.max_row || left < 0 {
            break;
        }
        rows = rows.saturating_add(1);
        sum = sum.saturating_add(length);
    }
    Ok((rows, sum))
}
