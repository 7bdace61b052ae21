//! Records of Kafka 0.8 and later: what is written is read again, and no bytes are worse than refused.

#![allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)] // a panic is how a test fails

use odradek_engine::{
    BATCH_HEADER_BYTES, Batch, BatchLimits, Header, MessageRun, NO_LIMIT, NewBatch, NewRecord, NewRecords,
    NullableColumn, Offsets, RecordBuilder, crc32c, encode_message, encoded_message_bytes, packed, scan_messages,
};
use proptest::prelude::*;

type Field = Option<Vec<u8>>;

fn all(column: &NullableColumn) -> Vec<Field> {
    let Offsets::Narrow(offsets) = &column.offsets else { panic!("wide") };
    let strings = packed(offsets, &column.data).map(Result::unwrap).enumerate();
    let valid = |row: usize| column.validity.as_ref().is_none_or(|validity| validity[row] != 0);
    strings.map(|(row, string)| valid(row).then(|| string.to_vec())).collect()
}

/// Up to two headers a record.
fn header_rows(rows: &[(Field, Field, i64)]) -> Vec<[Header<'_>; 2]> {
    rows.iter().map(|(key, ..)| [(&b"name"[..], key.as_deref()), (b"", None)]).collect()
}

fn new_records<'a>(rows: &'a [(Field, Field, i64)], headers: &'a [[Header<'a>; 2]]) -> Vec<NewRecord<'a>> {
    let mut made = vec![];
    for (index, ((key, value, time), headers)) in rows.iter().zip(headers).enumerate() {
        let (key, value, headers) = (key.as_deref(), value.as_deref(), &headers[..index % 3]);
        made.push(NewRecord { key, value, timestamp: Some(*time), headers });
    }
    made
}

fn records(rows: &[(Field, Field, i64)]) -> Vec<u8> {
    let mut made = vec![];
    let headers = header_rows(rows);
    let new = new_records(rows, &headers);
    let new = NewRecords::new(&new).unwrap();
    new.put(&mut made).unwrap();
    assert_eq!(new.bytes, made.len());
    made
}

fn batch(count: i64) -> Batch {
    Batch { count, base_offset: 40, last_delta: 99, first_offset: 0, timestamp: 7, append_time: false }
}

#[test]
fn crc32c_is_that_of_castagnoli() {
    assert_eq!(crc32c(b"123456789", 0), 0xE306_9283);
    assert_eq!(crc32c(b"6789", crc32c(b"12345", 0)), 0xE306_9283);
}

fn rows() -> impl Strategy<Value = Vec<(Field, Field, i64)>> {
    let field = || proptest::option::of(proptest::collection::vec(any::<u8>(), 0..80));
    proptest::collection::vec((field(), field(), any::<i64>()), 1..9)
}

proptest! {
    #[test]
    fn records_are_read_as_they_were_written(rows in rows()) {
        let data = records(&rows);
        let mut made = RecordBuilder::default();
        let count = i64::try_from(rows.len()).unwrap();
        prop_assert_eq!(made.decode_batch(&data, 0, Batch { timestamp: rows[0].2, ..batch(count) }), Ok((data.len(), count, 40 + count)));
        let columns = made.take();
        let keys = columns.keys.map_or_else(|| vec![None; rows.len()], |keys| all(&keys));
        prop_assert!(keys.iter().eq(rows.iter().map(|row| &row.0)));
        prop_assert!(all(&columns.values).iter().eq(rows.iter().map(|row| &row.1)));
        let (times, kinds) = columns.timestamps.unwrap();
        prop_assert!(times.iter().eq(rows.iter().map(|row| &row.2)));
        prop_assert_eq!(kinds, vec![0; rows.len()]);
        prop_assert_eq!(columns.next_positions.last(), Some(&140));
        prop_assert_eq!(columns.headers.is_some(), rows.len() > 1);
    }

    #[test]
    fn messages_are_read_as_they_were_written(rows in rows(), magic in 0u8..2) {
        let mut data = vec![];
        for (offset, (key, value, time)) in (0..).zip(&rows) {
            let (key, value) = (key.as_deref(), value.as_deref());
            let record = NewRecord { key, value, timestamp: Some(*time), headers: &[] };
            let before = data.len();
            encode_message(record, magic, 0, offset, &mut data).unwrap();
            prop_assert_eq!(encoded_message_bytes(record, magic), Ok(data.len() - before));
        }
        let last = i64::try_from(rows.len()).unwrap();
        prop_assert_eq!(scan_messages(&data), (data.len(), rows.len(), last - 1));
        let mut made = RecordBuilder::default();
        let run = MessageRun { first_offset: 0, shift: 5, append_time: None, max_entry: NO_LIMIT };
        prop_assert_eq!(made.decode_messages(&data, 0, run), Ok((data.len(), last + 5)));
        let columns = made.take();
        prop_assert!(all(&columns.values).iter().eq(rows.iter().map(|row| &row.1)));
        prop_assert_eq!(columns.timestamps.is_some(), magic == 1);
    }

    #[test]
    fn damage_stops_a_run_and_leaves_columns_of_one_length(rows in rows(), at: usize, to: u8, count in -1i64..12) {
        let mut data = records(&rows);
        let at = at % data.len();
        data[at] = to;
        let mut made = RecordBuilder::default();
        made.push(b"first", 0, 1).unwrap();
        let (end, number, _) = made.decode_batch(&data, 0, batch(count)).unwrap();
        prop_assert!(end <= data.len() && number <= count.max(0));
        prop_assert_eq!(made.len(), usize::try_from(number).unwrap() + 1);
        let columns = made.take();
        prop_assert_eq!(columns.positions.len(), columns.next_positions.len());
        prop_assert_eq!(all(&columns.values).len(), columns.positions.len());
    }

    #[test]
    fn batches_are_read_as_they_were_written(rows in rows(), base_offset in 0i64..1 << 60) {
        let headers = header_rows(&rows);
        let new = new_records(&rows, &headers);
        let new = NewRecords::new(&new).unwrap();
        let body = records(&rows);
        let fields = NewBatch { attributes: 0, base_offset, producer_id: -1, producer_epoch: -1, base_sequence: -1 };
        let header = fields.header(&new, body.len(), |crc| crc32c(&body, crc)).unwrap();
        prop_assert_eq!(header.len(), BATCH_HEADER_BYTES);
        let data = [&header[..], &body, &header, &body].concat();
        let mut made = RecordBuilder::default();
        let count = i64::try_from(rows.len()).unwrap();
        prop_assert_eq!(made.decode_batches(&data, 0, 0, BatchLimits::PLAIN), Ok((data.len(), base_offset + count, 0)));
        let columns = made.take();
        prop_assert_eq!(columns.positions.len(), 2 * rows.len());
        prop_assert_eq!(columns.positions[0], base_offset);
        prop_assert!(columns.timestamps.unwrap().0.iter().eq(rows.iter().chain(&rows).map(|row| &row.2)));
    }
}
