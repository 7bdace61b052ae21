//! Hostile records of Kafka 0.8 and later: batches and message sets that were written, changed, and perhaps given a right
//! length and CRC again are read as a decoder written as naively as possible reads them.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use odradek_engine::{
    BatchLimits, Header, HeaderColumn, MessageRun, NO_LIMIT, NewBatch, NewRecord, NewRecords, NullableColumn, Offsets,
    RecordBuilder, encode_message, packed, scan_messages,
};

type Field = Option<Vec<u8>>;

#[derive(Arbitrary, Debug)]
struct Input {
    rows: Vec<NewRow>,
    base_offset: u32,
    attributes: u8,
    /// Written again behind itself.
    twice: bool,
    /// Where, and what is put there.
    changes: Vec<(u16, u8)>,
    /// Length and CRC are put right after that.
    repaired: bool,
    /// Left away at the end.
    cut: u8,
    first_offset: u32,
    max_entry: Option<u16>,
}

#[derive(Arbitrary, Debug)]
struct NewRow {
    value: Field,
    key: Field,
    headers: Vec<(String, Field)>,
    timestamp: i64,
}

/// A row as a decoder gives it.
#[derive(Debug, PartialEq)]
struct Row {
    offset: i64,
    timestamp: i64,
    kind: i8,
    key: Field,
    value: Field,
    headers: Vec<(String, Field)>,
}

/// A CRC bit by bit.
fn naive_crc(polynomial: u32, data: &[u8]) -> u32 {
    !data.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { polynomial } else { 0 })
    })
}

const CASTAGNOLI: u32 = 0x82F6_3B78;
const IEEE: u32 = 0xEDB8_8320;

// ---- the naive decoder ------------------------------------------------------------------------------------------

fn fixed<const N: usize>(data: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, rest) = data.split_first_chunk()?;
    *data = rest;
    Some(*bytes)
}

fn taken<'a>(data: &mut &'a [u8], len: i64) -> Option<&'a [u8]> {
    let (bytes, rest) = data.split_at_checked(usize::try_from(len).ok()?)?;
    *data = rest;
    Some(bytes)
}

fn varint(data: &mut &[u8], bits: u32) -> Option<i64> {
    let mut number = 0u128;
    for index in 0..bits.div_ceil(7) {
        let [byte] = fixed(data)?;
        number |= u128::from(byte & 0x7F) << (7 * index);
        if byte < 0x80 {
            let number = u64::try_from(number).ok().filter(|number| bits == 64 || number >> bits == 0)?;
            return Some((number >> 1) as i64 ^ -((number & 1) as i64));
        }
    }
    None
}

fn string(data: &mut &[u8]) -> Option<Field> {
    match varint(data, 32)? {
        -1 => Some(None),
        len => Some(Some(taken(data, len)?.to_vec())),
    }
}

fn naive_record(data: &mut &[u8]) -> Option<(i64, i64, Row)> {
    let len = varint(data, 32)?;
    let mut fields = taken(data, len)?;
    let [_] = fixed(&mut fields)?;
    let (time, delta) = (varint(&mut fields, 64)?, varint(&mut fields, 32)?);
    let (key, value) = (string(&mut fields)?, string(&mut fields)?);
    let mut headers = vec![];
    let count = varint(&mut fields, 32)?;
    if count < 0 {
        return None;
    }
    for _ in 0..count {
        let name = string(&mut fields)??;
        headers.push((String::from_utf8_lossy(&name).into_owned(), string(&mut fields)?));
    }
    fields.is_empty().then_some((time, delta, Row { offset: 0, timestamp: 0, kind: 0, key, value, headers }))
}

const MAX_DECOMPRESSED: usize = 1 << 20;
const SNAPPY: u8 = 2;

/// A batch with its records compressed as one block.
fn compressed(batch: &[u8]) -> Vec<u8> {
    let body = snap::raw::Encoder::new().compress_vec(&batch[61..]).unwrap();
    let mut made = [&batch[..61], &body].concat();
    made[22] = made[22] & !7 | SNAPPY;
    repaired(&mut made);
    made
}

/// The same as `naive_batch` where batches may be compressed by snappy.
fn naive_snappy_batch(data: &[u8], first_offset: i64, max_entry: i64) -> Option<(Vec<Row>, usize)> {
    let length = i64::from(i32::from_be_bytes(data.get(8..12)?.try_into().unwrap()));
    let entry = data.get(..usize::try_from(length + 12).ok()?)?;
    if entry.get(22)? & 7 != SNAPPY || entry.len() < 61 {
        return naive_batch(data, first_offset, max_entry);
    }
    if length + 12 > max_entry
        || naive_crc(CASTAGNOLI, &entry[21..]) != u32::from_be_bytes(entry[17..21].try_into().unwrap())
    {
        return None;
    }
    let block = &entry[61..];
    let count = usize::try_from(i32::from_be_bytes(entry[57..61].try_into().unwrap())).ok()?;
    let size = snap::raw::decompress_len(block).ok().filter(|&size| size <= 22 * block.len())?;
    if block.is_empty() || block.starts_with(b"\x82SNAPPY\0") || size > MAX_DECOMPRESSED.saturating_sub(64 * count) {
        return None;
    }
    let body = snap::raw::Decoder::new().decompress_vec(block).ok()?;
    let mut plain = [&entry[..61], &body].concat();
    plain[22] &= !7;
    repaired(&mut plain);
    naive_batch(&plain, first_offset, NO_LIMIT).map(|(rows, _)| (rows, entry.len()))
}

/// Put length and CRC of a batch right.
fn repaired(batch: &mut [u8]) {
    let length = (batch.len() - 12) as i32;
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    let crc = naive_crc(CASTAGNOLI, &batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
}

/// The rows of a plain batch, and its length; None for anything that the engine leaves to its caller.
fn naive_batch(data: &[u8], first_offset: i64, max_entry: i64) -> Option<(Vec<Row>, usize)> {
    let mut at = data;
    let (base, length) = (i64::from_be_bytes(fixed(&mut at)?), i32::from_be_bytes(fixed(&mut at)?));
    let mut body = taken(&mut at, length.into())?;
    let [_, _, _, _, magic] = fixed(&mut body)?;
    let crc = u32::from_be_bytes(fixed(&mut body)?);
    let right = magic == 2 && i64::from(length) + 12 <= max_entry && naive_crc(CASTAGNOLI, body) == crc;
    let attributes = i16::from_be_bytes(fixed(&mut body)?);
    let last = i64::from(i32::from_be_bytes(fixed(&mut body)?));
    let (base_time, max_time) = (i64::from_be_bytes(fixed(&mut body)?), i64::from_be_bytes(fixed(&mut body)?));
    let _producer: [u8; 14] = fixed(&mut body)?;
    let count = i32::from_be_bytes(fixed(&mut body)?);
    if !right || attributes & 0x37 != 0 || base < 0 || last < 0 || count < 0 || base.checked_add(last + 2).is_none() {
        return None;
    }
    let append_time = attributes & 8 != 0;
    let mut rows = vec![];
    for _ in 0..count {
        let (time, delta, row) = naive_record(&mut body)?;
        if !(0..=last).contains(&delta) {
            return None;
        }
        let timestamp = if append_time { max_time } else { base_time.wrapping_add(time) };
        rows.push(Row { offset: base + delta, timestamp, kind: i8::from(append_time), ..row });
    }
    rows.retain(|row| row.offset >= first_offset);
    body.is_empty().then_some((rows, length as usize + 12))
}

fn sized(data: &mut &[u8]) -> Option<Field> {
    match i32::from_be_bytes(fixed(data)?) {
        -1 => Some(None),
        len => Some(Some(taken(data, len.into())?.to_vec())),
    }
}

/// The same of a plain message of magic 0 or 1.
fn naive_message(data: &[u8], first_offset: i64, max_entry: i64) -> Option<(Vec<Row>, usize)> {
    let mut at = data;
    let (offset, length) = (i64::from_be_bytes(fixed(&mut at)?), i32::from_be_bytes(fixed(&mut at)?));
    let mut body = taken(&mut at, length.into())?;
    let crc = u32::from_be_bytes(fixed(&mut body)?);
    let right = length >= 14 && i64::from(length) + 12 <= max_entry && naive_crc(IEEE, body) == crc;
    let [magic, attributes] = fixed(&mut body)?;
    if !right || magic > 1 || attributes & 7 != 0 || !(0..i64::MAX).contains(&offset) {
        return None;
    }
    let (timestamp, kind) = match magic {
        0 => (-1, -1),
        _ => (i64::from_be_bytes(fixed(&mut body)?), i8::from(attributes & 8 != 0)),
    };
    let (key, value) = (sized(&mut body)?, sized(&mut body)?);
    let rows = vec![Row { offset, timestamp, kind, key, value, headers: vec![] }];
    let rows = rows.into_iter().filter(|row| row.offset >= first_offset).collect();
    body.is_empty().then_some((rows, length as usize + 12))
}

// ---- the engine's columns as rows ---------------------------------------------------------------------------------

fn fields(column: &NullableColumn) -> Vec<Field> {
    let Offsets::Narrow(offsets) = &column.offsets else { panic!("wide") };
    let strings = packed(offsets, &column.data).map(Result::unwrap).enumerate();
    let valid = |row: usize| column.validity.as_ref().is_none_or(|validity| validity[row] != 0);
    strings.map(|(row, string)| valid(row).then(|| string.to_vec())).collect()
}

fn header_rows(column: HeaderColumn) -> Vec<Vec<(String, Field)>> {
    let names = fields(&column.names).into_iter().map(|name| String::from_utf8(name.unwrap()).unwrap());
    let pairs: Vec<_> = names.zip(fields(&column.values)).collect();
    column.offsets.windows(2).map(|ends| pairs[ends[0] as usize..ends[1] as usize].to_vec()).collect()
}

fn rows_of(made: &mut RecordBuilder) -> Vec<Row> {
    let taken = made.take();
    let count = taken.positions.len();
    assert_eq!(taken.next_positions.len(), count);
    let mut values = fields(&taken.values).into_iter();
    let mut keys = taken.keys.map_or_else(|| vec![None; count], |keys| fields(&keys)).into_iter();
    let mut headers = taken.headers.map_or_else(|| vec![vec![]; count], header_rows).into_iter();
    let (times, kinds) = taken.timestamps.unwrap_or_else(|| (vec![-1; count], vec![-1; count]));
    let numbers = taken.positions.iter().zip(times).zip(kinds);
    let row = |((offset, timestamp), kind): ((&i64, i64), i8)| Row {
        offset: *offset,
        timestamp,
        kind,
        key: keys.next().unwrap(),
        value: values.next().unwrap(),
        headers: headers.next().unwrap(),
    };
    let rows = numbers.map(row).collect();
    assert!(values.next().is_none() && keys.next().is_none() && headers.next().is_none());
    rows
}

// ---- the inputs ---------------------------------------------------------------------------------------------------

fn batch(input: &Input) -> Vec<u8> {
    let headers: Vec<Vec<Header<'_>>> = input.rows.iter().map(headers_of).collect();
    let rows = input.rows.iter().zip(&headers);
    let rows: Vec<_> = rows.map(|(row, headers)| new_record(row, headers)).collect();
    let records = NewRecords::new(&rows).unwrap();
    let mut body = vec![];
    records.put(&mut body).unwrap();
    assert_eq!(body.len(), records.bytes);
    let fields = NewBatch {
        attributes: i16::from(input.attributes & 0x7F),
        base_offset: input.base_offset.into(),
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
    };
    let header = fields.header(&records, body.len(), |crc| odradek_engine::crc32c(&body, crc)).unwrap();
    [&header[..], &body].concat()
}

fn headers_of(row: &NewRow) -> Vec<Header<'_>> {
    row.headers.iter().map(|(name, value)| (name.as_bytes(), value.as_deref())).collect()
}

fn new_record<'a>(row: &'a NewRow, headers: &'a [Header<'a>]) -> NewRecord<'a> {
    NewRecord { value: row.value.as_deref(), key: row.key.as_deref(), timestamp: Some(row.timestamp), headers }
}

fn messages(input: &Input, magic: u8) -> Vec<u8> {
    let mut made = vec![];
    for (row, offset) in input.rows.iter().zip(i64::from(input.base_offset)..) {
        encode_message(new_record(row, &[]), magic, input.attributes & 0x0F, offset, &mut made).unwrap();
    }
    made
}

/// Change some bytes, and perhaps put length and CRC of the first entry right.
fn changed(input: &Input, mut data: Vec<u8>) -> Vec<u8> {
    for (at, byte) in &input.changes {
        let at = usize::from(*at);
        if let Some(place) = data.get_mut(at) {
            *place = *byte;
        }
    }
    if input.repaired && data.len() > 21 {
        let length = (data.len() - 12) as i32;
        data[8..12].copy_from_slice(&length.to_be_bytes());
        if data[16] == 2 {
            let crc = naive_crc(CASTAGNOLI, &data[21..]);
            data[17..21].copy_from_slice(&crc.to_be_bytes());
        } else {
            let crc = naive_crc(IEEE, &data[16..]);
            data[12..16].copy_from_slice(&crc.to_be_bytes());
        }
    }
    if input.twice {
        data.extend_from_within(..);
    }
    data.truncate(data.len().saturating_sub(input.cut.into()));
    data
}

/// What the naive decoder makes of a run: the rows, and the index behind it.
fn naive_run(data: &[u8], one: impl Fn(&[u8]) -> Option<(Vec<Row>, usize)>) -> (Vec<Row>, usize) {
    let (mut all, mut at) = (vec![], 0);
    while let Some((rows, size)) = one(&data[at..]) {
        all.extend(rows);
        at += size;
    }
    (all, at)
}

fuzz_target!(|input: Input| {
    let (first, max_entry) = (i64::from(input.first_offset), input.max_entry.map_or(NO_LIMIT, i64::from));
    let data = changed(&input, batch(&input));
    let mut made = RecordBuilder::default();
    let limits = BatchLimits { max_entry, ..BatchLimits::PLAIN };
    let (end, _, _) = made.decode_batches(&data, 0, first, limits).unwrap();
    let (expected, index) = naive_run(&data, |rest| naive_batch(rest, first, max_entry));
    assert_eq!((rows_of(&mut made), end), (expected, index));

    let data = changed(&input, compressed(&batch(&input)));
    let limits = BatchLimits { max_decompressed: MAX_DECOMPRESSED, ..limits };
    let (end, _, bytes) = made.decode_batches(&data, 0, first, limits).unwrap();
    let (expected, index) = naive_run(&data, |rest| naive_snappy_batch(rest, first, max_entry));
    assert_eq!((rows_of(&mut made), end), (expected, index));
    assert!(bytes <= data.len() * 22);

    let data = changed(&input, messages(&input, input.attributes >> 7));
    let run = MessageRun { first_offset: first, shift: 0, append_time: None, max_entry };
    let (end, _) = made.decode_messages(&data, 0, run).unwrap();
    let (expected, index) = naive_run(&data, |rest| naive_message(rest, first, max_entry));
    assert_eq!((rows_of(&mut made), end), (expected, index));
    assert!(scan_messages(&data).0 <= data.len());
});
