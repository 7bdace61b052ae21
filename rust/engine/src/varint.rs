//! Zigzag numbers of 7 bits a byte, as records of magic 2 have them (specification 3.3).

use crate::{Error, Sink};

/// Reads fields one behind the other; None where they go beyond the end or mean nothing.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl Cursor<'static> {
    pub const EMPTY: Self = Cursor { rest: &[] };
}

impl<'a> Cursor<'a> {
    pub fn new(rest: &'a [u8]) -> Self {
        Cursor { rest }
    }

    pub fn left(&self) -> usize {
        self.rest.len()
    }

    #[inline]
    pub fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    #[inline]
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(bytes)
    }

    #[inline]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*bytes)
    }

    #[inline]
    pub fn varint(&mut self) -> Option<i32> {
        match self.short() {
            Some(number) => i32::try_from(unzigzag(number)).ok(),
            None => {
                let number = self.unsigned(5)?;
                if number > u64::from(u32::MAX) {
                    return None;
                }
                i32::try_from(unzigzag(number)).ok()
            }
        }
    }

    #[inline]
    pub fn varlong(&mut self) -> Option<i64> {
        match self.short() {
            Some(number) => Some(unzigzag(number)),
            None => self.unsigned(10).map(unzigzag),
        }
    }

    /// A number of one or two bytes, as nearly all are; None for a longer one.
    #[inline]
    fn short(&mut self) -> Option<u64> {
        match *self.rest {
            [first, ref rest @ ..] if first < 0x80 => {
                self.rest = rest;
                Some(u64::from(first))
            }
            [first, second, ref rest @ ..] if second < 0x80 => {
                self.rest = rest;
                Some(u64::from(first & 0x7F) | u64::from(second) << 7)
            }
            _ => None,
        }
    }

    /// A number of so many bytes at most.
    #[inline(never)]
    fn unsigned(&mut self, most: usize) -> Option<u64> {
        let mut number = 0u64;
        for (index, &byte) in self.rest.iter().take(most).enumerate() {
            let shift = u32::try_from(index).ok()?.checked_mul(7)?;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits.checked_shl(shift)?;
            if byte < 0x80 {
                self.rest = self.rest.get(index.checked_add(1)?..)?;
                return Some(number);
            }
        }
        None
    }

    /// A string behind its length: -1 is a null.
    #[inline]
    pub fn string(&mut self) -> Option<Option<&'a [u8]>> {
        match self.varint()? {
            -1 => Some(None),
            len => self.bytes(usize::try_from(len).ok()?).map(Some),
        }
    }

    /// The same with a length of 4 bytes.
    #[inline]
    pub fn sized(&mut self) -> Option<Option<&'a [u8]>> {
        match i32::from_be_bytes(self.array()?) {
            -1 => Some(None),
            len => self.bytes(usize::try_from(len).ok()?).map(Some),
        }
    }
}

/// Bytes of a number.
#[inline]
pub(crate) fn varlong_bytes(number: i64) -> usize {
    let bits = 64u32.saturating_sub((zigzag(number) | 1).leading_zeros());
    usize::try_from(bits.div_ceil(7)).unwrap_or(10)
}

#[inline]
fn zigzag(number: i64) -> u64 {
    u64::from_ne_bytes((number << 1 ^ number >> 63).to_ne_bytes())
}

#[inline]
fn unzigzag(number: u64) -> i64 {
    i64::from_ne_bytes((number >> 1 ^ (number & 1).wrapping_neg()).to_ne_bytes())
}

/// Write a number.
#[inline]
pub(crate) fn put_varlong(number: i64, sink: &mut impl Sink) -> Result<(), Error> {
    let mut rest = zigzag(number);
    let low = |rest: u64| u8::try_from(rest & 0x7F).unwrap_or(0);
    if rest < 1 << 7 {
        return sink.put(&[low(rest)]); // of a known size: no call
    }
    if rest < 1 << 14 {
        return sink.put(&[low(rest) | 0x80, low(rest >> 7)]);
    }
    let mut bytes = [0u8; 10];
    let mut len = 0usize;
    for byte in &mut bytes {
        *byte = low(rest);
        rest >>= 7;
        len = len.saturating_add(1);
        if rest == 0 {
            break;
        }
        *byte |= 0x80;
    }
    sink.put(bytes.get(..len).unwrap_or_default())
}
