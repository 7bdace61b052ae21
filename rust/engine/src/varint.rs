//! Zigzag numbers of 7 bits a byte, as records of magic 2 have them (specification 3.3).

use crate::{Error, Sink};

/// Reads fields one behind the other; None where they go beyond the end or mean nothing.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Cursor { data, at: 0 }
    }

    /// What has not been read.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.data.get(self.at..).unwrap_or_default()
    }

    #[inline]
    pub fn byte(&mut self) -> Option<u8> {
        let &byte = self.data.get(self.at)?;
        self.at = self.at.wrapping_add(1);
        Some(byte)
    }

    #[inline]
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(len)?;
        let bytes = self.data.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    /// A cursor over the next bytes alone.
    #[inline]
    pub fn part(&mut self, len: usize) -> Option<Self> {
        let end = self.at.checked_add(len)?;
        let part = Cursor { data: self.data.get(..end)?, at: self.at };
        self.at = end;
        Some(part)
    }

    #[inline]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = self.data.get(self.at..)?.first_chunk()?;
        self.at = self.at.wrapping_add(N);
        Some(*bytes)
    }

    #[inline]
    pub fn varint(&mut self) -> Option<i32> {
        match self.short() {
            Some(number) => Some(i32::from(number >> 1) ^ i32::from(number & 1).wrapping_neg()),
            None => {
                let number = self.unsigned(5)?;
                if number > u64::from(u32::MAX) { None } else { i32::try_from(unzigzag(number)).ok() }
            }
        }
    }

    #[inline]
    pub fn varlong(&mut self) -> Option<i64> {
        match self.short() {
            Some(number) => Some(i64::from(number >> 1) ^ i64::from(number & 1).wrapping_neg()),
            None => self.unsigned(10).map(unzigzag),
        }
    }

    /// A number of one or two bytes, as nearly all are; None for any other.
    #[inline]
    fn short(&mut self) -> Option<u16> {
        let &first = self.data.get(self.at)?;
        if first < 0x80 {
            self.at = self.at.wrapping_add(1);
            return Some(u16::from(first));
        }
        let &second = self.data.get(self.at.wrapping_add(1))?;
        if second >= 0x80 {
            return None;
        }
        self.at = self.at.wrapping_add(2);
        Some(u16::from(first & 0x7F) | u16::from(second) << 7)
    }

    /// A number of so many bytes at most.
    #[inline(never)]
    fn unsigned(&mut self, most: usize) -> Option<u64> {
        let mut number = 0u64;
        for (index, &byte) in self.data.get(self.at..)?.iter().take(most).enumerate() {
            let shift = u32::try_from(index).ok()?.checked_mul(7)?;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits.checked_shl(shift)?;
            if byte < 0x80 {
                self.at = self.at.checked_add(index)?.checked_add(1)?;
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
    let zigzag = zigzag(number);
    if zigzag < 1 << 14 {
        return if zigzag < 1 << 7 { 1 } else { 2 };
    }
    let bits = 64u32.saturating_sub(zigzag.leading_zeros());
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
