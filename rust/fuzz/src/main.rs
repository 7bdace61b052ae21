//! Hostile bytes against every loop of the engine: libFuzzer looks for inputs that panic, that reach what is not
//! theirs (AddressSanitizer), or that a decoder written as naively as possible reads differently.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use odradek_engine::{
    Batch, BatchLimits, ByteStrings, ColumnBuilder, Error, Limits, Lz4Block, MessageRun, NO_LIMIT, NewRecord,
    NewRecords, Offsets, RecordBuilder, check_batches, check_run, encode_message, encode_run, encoded_bytes, fit,
    lz4_content, packed, scan_messages,
};

#[derive(Arbitrary, Debug)]
struct Input {
    entries: Vec<Entry>,
    /// Cut out of them.
    start: u16,
    stop: u16,
    base: i64,
    max_entry: Option<i32>,
    offsets: Vec<i32>,
    limits: (i64, u16, i64),
}

/// One entry, or something like it.
#[derive(Arbitrary, Debug)]
enum Entry {
    Good { old: bool, attributes: u8, payload: Vec<u8> },
    Bad { length: i32, magic: u8, attributes: u8, crc: u32, payload: Vec<u8> },
    Almost { old: bool, attributes: u8, payload: Vec<u8>, longer: i8, crc: u8 },
    Bytes(Vec<u8>),
}

impl Entry {
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Entry::Good { old, attributes, payload } => write(to, *old, *attributes, payload, 0, 0),
            Entry::Almost { old, attributes, payload, longer, crc } => {
                write(to, *old, *attributes, payload, i32::from(*longer), u32::from(*crc))
            }
            Entry::Bad { length, magic, attributes, crc, payload } => {
                to.extend(length.to_be_bytes());
                to.extend([*magic, *attributes]);
                to.extend(crc.to_be_bytes());
                to.extend(payload);
            }
            Entry::Bytes(bytes) => to.extend(bytes),
        }
    }
}

fn write(to: &mut Vec<u8>, old: bool, attributes: u8, payload: &[u8], longer: i32, crc: u32) {
    let head = if old { 5 } else { 6 };
    to.extend((payload.len() as i32 + head + longer).to_be_bytes());
    if old {
        to.push(0);
    } else {
        to.extend([1, attributes]);
    }
    to.extend((naive_crc(payload) ^ crc).to_be_bytes());
    to.extend(payload);
}

/// CRC-32, bit by bit.
fn naive_crc(data: &[u8]) -> u32 {
    !data.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xEDB8_8320 } else { 0 })
    })
}

/// The payloads of the run at `start`, and the index behind each.
fn naive_run(data: &[u8], start: usize, max_entry: i64) -> Vec<(&[u8], usize)> {
    let (mut run, mut at) = (vec![], start);
    while data.len() - at >= 10 {
        let length = i32::from_be_bytes(data[at..at + 4].try_into().unwrap());
        let (magic, attributes) = (data[at + 4], data[at + 5]);
        let head = if magic == 0 { 5 } else { 6 };
        let fits = length >= head && (data.len() - at - 4) as i64 >= i64::from(length);
        if magic > 1 || !fits || magic == 1 && attributes & 3 != 0 || i64::from(length) + 4 > max_entry {
            break;
        }
        let (head, end) = (at + 4 + head as usize, at + 4 + length as usize);
        if u32::from_be_bytes(data[head - 4..head].try_into().unwrap()) != naive_crc(&data[head..end]) {
            break;
        }
        run.push((&data[head..end], end));
        at = end;
    }
    run
}

fn decoded(input: &Input, data: &[u8], start: usize) {
    let max_entry = input.max_entry.map_or(NO_LIMIT, i64::from);
    let expected = naive_run(data, start, max_entry);
    let end = expected.last().map_or(start, |(_, end)| *end);
    assert_eq!(check_run(data, start, max_entry), (end, expected.len()));

    let mut rows = ColumnBuilder::default();
    rows.push(b"first", -3, -2, 0).unwrap();
    let done = rows.decode_run(data, start, input.base, max_entry);
    if input.base.checked_add(data.len() as i64).is_none() {
        assert_eq!(done, Err(Error::Overflow));
        return;
    }
    assert_eq!(done, Ok(end));
    let mut values = ByteStrings::default();
    assert!(values.decode_run(data, start).unwrap() >= end);
    rows.add_wrapper(&values, 7, 9).unwrap();

    let columns = rows.take();
    let Offsets::Narrow(offsets) = columns.values.offsets else { panic!("wide") };
    let payloads: Vec<&[u8]> = packed(&offsets, &columns.values.data).map(Result::unwrap).collect();
    let first = std::iter::once(&b"first"[..]);
    let unbounded = naive_run(data, start, NO_LIMIT);
    assert!(first.chain(expected.iter().chain(&unbounded).map(|(payload, _)| *payload)).eq(payloads));
    let nexts = expected.iter().map(|(_, end)| input.base + *end as i64);
    assert!(columns.next_positions[1..].iter().copied().take(expected.len()).eq(nexts));
    assert_eq!(columns.positions.len(), columns.next_positions.len());
    assert_eq!(columns.inner_indexes.is_some(), unbounded.len() > 1);
    encoded(&expected);
}

fn encoded(run: &[(&[u8], usize)]) {
    let values = run.iter().map(|(payload, _)| Ok(*payload));
    let mut set = vec![];
    encode_run(values.clone(), 0, &mut set).unwrap();
    assert_eq!(encoded_bytes(values), Ok(set.len()));
    assert!(naive_run(&set, 0, NO_LIMIT).iter().map(|(payload, _)| payload).eq(run.iter().map(|(payload, _)| payload)));
}

fn unpacked(input: &Input, data: &[u8]) {
    let wide: Vec<i64> = input.offsets.iter().copied().map(i64::from).collect();
    let strings = packed(&input.offsets, data);
    assert!(strings.clone().eq(packed(&wide, data)));
    let (max_bytes, row_bytes, max_row) = input.limits;
    let limits = Limits { max_bytes, row_bytes: row_bytes.into(), max_row };
    let lengths = strings.take_while(Result::is_ok).map(|string| string.map(|string| Some(string.len())));
    let (rows, sum) = fit(lengths, limits).unwrap();
    assert!(rows == 0 || (sum + rows * usize::from(row_bytes)) as i64 <= max_bytes);
}

/// Records of 0.8 and later: any bytes are read or refused, and what was written is read again.
fn records(input: &Input, data: &[u8]) {
    let (base_offset, first_offset) = (input.base.saturating_abs() >> 1, input.limits.0);
    let count = i64::from(input.limits.1);
    let batch =
        Batch { count, base_offset, last_delta: count, first_offset, timestamp: input.limits.2, append_time: false };
    let run = MessageRun { first_offset, shift: input.base, append_time: None, max_entry: NO_LIMIT };
    let mut made = RecordBuilder::default();
    let (end, number, _) = made.decode_batch(data, 0, batch).unwrap();
    assert!(end <= data.len() && number <= count);
    assert!(made.decode_messages(data, 0, run).unwrap().0 <= data.len());
    let limits = BatchLimits {
        max_decompressed: usize::from(input.limits.1),
        transactional: input.base < 0,
        ..BatchLimits::PLAIN
    };
    assert!(made.decode_batches(data, 0, first_offset, limits).unwrap().0 <= check_batches(data, 0, limits).0);
    let columns = made.take();
    assert_eq!(columns.positions.len(), columns.values.offsets.rows());
    assert!(columns.keys.is_none_or(|keys| keys.offsets.rows() == columns.positions.len()));
    assert!(columns.headers.is_none_or(|headers| headers.offsets.len() == columns.positions.len() + 1));
    assert!(scan_messages(data).0 <= data.len());

    let headers = [(&b"name"[..], None)];
    let record = NewRecord { value: Some(data), key: data.get(..5), timestamp: Some(input.base), headers: &headers };
    let (mut one, mut old) = (vec![], vec![]);
    NewRecords::new(&[record]).unwrap().put(&mut one).unwrap();
    encode_message(record, 1, 0, 7, &mut old).unwrap();
    let batch = Batch { count: 1, base_offset: 0, last_delta: 0, first_offset: 0, timestamp: input.base, ..batch };
    assert_eq!(made.decode_batch(&one, 0, batch), Ok((one.len(), 1, 1)));
    let run = MessageRun { first_offset: 0, shift: 0, ..run };
    assert_eq!(made.decode_messages(&old, 0, run), Ok((old.len(), 8)));
    let columns = made.take();
    assert_eq!(columns.values.data, [data, data].concat());
    assert_eq!(columns.timestamps, Some((vec![input.base; 2], vec![0; 2])));
}

/// Blocks of LZ4: any bytes hold something within the limits, or are refused.
fn lz4(input: &Input, data: &[u8]) {
    let (first, second) = data.split_at(usize::from(input.start).min(data.len()));
    let most = usize::from(input.limits.1);
    let blocks = [first, second].map(|bytes| Lz4Block { bytes, stored: input.base < 0, most });
    let max_bytes = usize::from(input.stop);
    if let Ok(content) = lz4_content(&blocks, max_bytes) {
        assert!(content.len() <= max_bytes.min(2 * most));
    }
}

fuzz_target!(|input: Input| {
    let mut data = vec![];
    input.entries.iter().for_each(|entry| entry.write(&mut data));
    data.truncate(data.len().saturating_sub(usize::from(input.stop)));
    let start = usize::from(input.start).min(data.len());
    decoded(&input, &data, 0);
    decoded(&input, &data, start);
    unpacked(&input, &data);
    records(&input, &data);
    lz4(&input, &data);
});
