//! The loops against what they promise, on generated sets.

#![allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used)] // a panic is how a test fails

use odradek_engine::{
    ByteStrings, ColumnBuilder, Columns, Error, Limits, NO_LIMIT, Offset, Offsets, check_run, encode_frame, encode_run,
    encoded_bytes, fit, frame_bytes, packed,
};
use proptest::prelude::*;

fn encoded(values: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut set = vec![];
    encode_run(values.iter().map(|value| Ok(value.as_ref())), 0, &mut set).unwrap();
    assert_eq!(encoded_bytes(values.iter().map(|value| Ok(value.as_ref()))), Ok(set.len()));
    set
}

#[test]
fn a_frame_has_its_length_its_head_and_each_run_behind_its_own() {
    let (one, two): ([&[u8]; 2], [&[u8]; 0]) = ([b"a", b"bc"], []);
    let runs = || [(&b"first"[..], &one[..]), (&b""[..], &two[..])].into_iter();
    let bytes = frame_bytes(b"head", runs(), 23).unwrap().unwrap();
    let mut frame = vec![];
    encode_frame(bytes, b"head", runs(), &mut frame).unwrap();
    let entries = encoded(&one);
    assert_eq!(frame, [b"\0\0\0\x28headfirst\0\0\0\x17", &entries[..], b"\0\0\0\0"].concat());
    assert_eq!((frame.len(), entries.len()), (bytes, 23));
    assert_eq!(frame_bytes(b"head", runs(), 22), Ok(None));
}

/// As a writer before magic 1 made it: its entries have no attributes.
fn old(value: &[u8]) -> Vec<u8> {
    let new = encoded(&[value]);
    let length = (u32::try_from(value.len()).unwrap() + 5).to_be_bytes();
    [&length[..], &[0], &new[6..]].concat()
}

fn payloads(columns: &Columns) -> Vec<&[u8]> {
    fn all<'a>(offsets: &'a [impl Offset], data: &'a [u8]) -> Vec<&'a [u8]> {
        packed(offsets, data).map(Result::unwrap).collect()
    }
    match &columns.values.offsets {
        Offsets::Narrow(offsets) => all(offsets, &columns.values.data),
        Offsets::Wide(offsets) => all(offsets, &columns.values.data),
    }
}

#[test]
fn an_entry_is_encoded_as_the_specification_draws_it() {
    // 0.7 itself wrote the empty one (specification 2.1); 0x352441C2 is the CRC-32 of "abc".
    assert_eq!(encoded(&[""]), b"\0\0\0\x06\x01\0\0\0\0\0");
    assert_eq!(encoded(&["abc"]), b"\0\0\0\x09\x01\0\x35\x24\x41\xC2abc");
}

#[test]
fn a_length_that_does_not_fit_is_refused_before_anything_is_read() {
    let most = vec![0; 0x7FFF_FFFF - 6 + 1]; // pages nobody touches
    let lengths = |len| encoded_bytes([Ok(&most[..len])].into_iter());
    assert_eq!(lengths(most.len()), Err(Error::Overflow));
    assert_eq!(lengths(most.len() - 1), Ok(0x7FFF_FFFF + 4));
}

#[test]
fn positions_that_do_not_fit_are_refused_and_nothing_is_added() {
    let set = encoded(&["x"]);
    let mut rows = ColumnBuilder::default();
    assert_eq!(rows.decode_run(&set, 0, i64::MAX - 10, NO_LIMIT), Err(Error::Overflow));
    assert!(rows.is_empty());
    assert_eq!(rows.decode_run(&set, 0, i64::MAX - 11, NO_LIMIT), Ok(11));
    assert_eq!(rows.take().next_positions, [i64::MAX]);
}

#[test]
fn an_empty_old_message_at_the_very_end_is_left_over() {
    let set = [old(b""), old(b"")].concat();
    assert_eq!(check_run(&set, 0, NO_LIMIT), (9, 1));
    assert_eq!(check_run(&old(b"x"), 0, NO_LIMIT), (10, 1));
}

#[test]
fn a_start_behind_the_end_finds_nothing() {
    assert_eq!(check_run(&encoded(&["x"]), usize::MAX, NO_LIMIT), (usize::MAX, 0));
}

#[test]
fn rows_of_wrappers_share_a_position_and_count_their_inner_indexes() {
    let mut values = ByteStrings::default();
    values.decode_run(&encoded(&["a", "b"]), 0).unwrap();
    let mut rows = ColumnBuilder::default();
    rows.decode_run(&encoded(&["first"]), 0, 100, NO_LIMIT).unwrap();
    rows.add_wrapper(&values, 115, 200).unwrap();
    rows.add_wrapper(&ByteStrings::default(), 1, 2).unwrap();
    rows.decode_run(&encoded(&["last"]), 0, 200, NO_LIMIT).unwrap();
    let columns = rows.take();
    assert_eq!(payloads(&columns), [&b"first"[..], b"a", b"b", b"last"]);
    assert_eq!(columns.positions, [100, 115, 115, 200]);
    assert_eq!(columns.next_positions, [115, 115, 200, 214]);
    assert_eq!(columns.inner_indexes, Some(vec![0, 0, 1, 0]));
    assert!(rows.is_empty() && rows.take().inner_indexes.is_none());
}

#[test]
fn a_wrapper_of_one_needs_no_inner_indexes() {
    let mut values = ByteStrings::default();
    values.push(b"a").unwrap();
    let mut rows = ColumnBuilder::default();
    rows.add_wrapper(&values, 1, 2).unwrap();
    assert_eq!(rows.take().inner_indexes, None);
}

#[test]
fn offsets_that_do_not_ascend_within_the_data_are_errors() {
    for offsets in [[0, 2, 1], [-1, 0, 0], [0, 0, 4], [i32::MIN, i32::MAX, 0]] {
        assert!(packed(&offsets, b"abc").any(|string| string == Err(Error::Offsets)), "{offsets:?}");
    }
    assert_eq!(packed(&[9i64], b"abc").count(), 0);
    assert_eq!(packed::<i64>(&[], b"abc").count(), 0);
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(values: Vec<(bool, Vec<u8>)>, split: prop::sample::Index) {
        let entries: Vec<Vec<u8>> =
            values.iter().map(|(is_old, value)| if *is_old { old(value) } else { encoded(&[value]) }).collect();
        let set = [entries.concat(), encoded(&["end"])].concat();
        let stop = split.index(set.len() + 1);
        let mut rows = ColumnBuilder::default();
        let end = rows.decode_run(&set[..stop], 0, 0, NO_LIMIT).unwrap();
        prop_assert_eq!(check_run(&set[..stop], 0, NO_LIMIT), (end, rows.len()));
        prop_assert_eq!(rows.decode_run(&set, end, 0, NO_LIMIT), Ok(set.len()));
        let columns = rows.take();
        let all = payloads(&columns);
        prop_assert!(all.iter().copied().eq(values.iter().map(|(_, value)| &value[..]).chain([&b"end"[..]])));
        prop_assert_eq!(&columns.positions[1..], &columns.next_positions[..all.len() - 1]);
    }

    #[test]
    fn what_fits_is_what_a_sum_says(lengths: Vec<u8>, max_bytes in -10i64..2000, row_bytes in 0i64..20) {
        let limits = Limits { max_bytes, row_bytes, max_row: 200 };
        let (rows, sum) = fit(lengths.iter().map(|length| Ok(Some(usize::from(*length)))), limits).unwrap();
        let cost = |rows: usize| lengths[..rows].iter().map(|length| i64::from(*length) + row_bytes).sum::<i64>();
        prop_assert_eq!(sum, lengths[..rows].iter().map(|length| usize::from(*length)).sum::<usize>());
        prop_assert!(rows == 0 || cost(rows) <= max_bytes);
        let next_fits = |next: &u8| *next <= 200 && cost(rows + 1) <= max_bytes;
        prop_assert!(!lengths.get(rows).is_some_and(next_fits));
    }
}
