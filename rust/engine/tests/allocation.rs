//! Memory stays proportional to the bytes that are there, whatever their lengths claim.

#![allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used)] // a panic is how a test fails

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use odradek_engine::{ByteStrings, ColumnBuilder, NO_LIMIT, encode_run};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(now, Relaxed);
        // SAFETY: as it was called.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as it was called.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most memory at any moment of this work, and what it keeps.
fn memory<T>(work: impl FnOnce() -> T) -> (usize, usize, T) {
    let before = NOW.load(Relaxed);
    MOST.store(before, Relaxed);
    let kept = work();
    // The test harness has threads, too, and may give back what it had before.
    (MOST.load(Relaxed).saturating_sub(before), NOW.load(Relaxed).saturating_sub(before), kept)
}

fn set(value: &[u8], count: usize) -> Vec<u8> {
    let mut set = vec![];
    encode_run((0..count).map(|_| Ok(value)), 0, &mut set).unwrap();
    set
}

const SIZE: usize = 1 << 20;

fn decoded(data: &[u8]) -> (usize, usize, usize) {
    let (most, kept, columns) = memory(|| {
        let mut rows = ColumnBuilder::default();
        rows.decode_run(data, 0, 0, NO_LIMIT).unwrap();
        rows.take()
    });
    (most, kept, columns.positions.len())
}

/// One test, because the allocator counts what all threads do.
#[test]
fn memory_is_proportional_to_the_bytes_there() {
    let mut recycled = vec![];
    // Nothing valid: nothing is kept, and next to nothing was ever taken.
    for junk in [vec![0xFF; SIZE], vec![0; SIZE], vec![0x7F; SIZE], vec![1; SIZE]] {
        let (most, kept, rows) = decoded(&junk);
        assert!(rows == 0 && most <= 64 && kept <= 64, "{most} {kept}");
    }
    // One tiny message and then nothing valid: what was made ready for more is given back.
    let (most, kept, rows) = decoded(&[set(b"x", 1), vec![0xFF; SIZE]].concat());
    assert!(rows == 1 && most <= SIZE + 65536 && kept <= 64, "{most} {kept}");
    // Empty messages: 10 bytes each, which become rows of 20, and a quarter more is never given back.
    let (most, kept, rows) = decoded(&set(b"", SIZE / 10));
    assert!(rows == SIZE / 10 && kept <= 5 * SIZE / 2 + 64 && most <= 8 * SIZE, "{most} {kept}");
    // Ordinary ones: payloads, and 20 bytes each; the same.
    let (most, kept, rows) = decoded(&set(&[7; 100], SIZE / 110));
    assert!((120 * rows..=150 * rows).contains(&kept) && most <= 3 * SIZE, "{most} {kept}");
    // What is given up is used again, by as much and by a little less: only small things are new.
    for size in [SIZE, SIZE, SIZE - SIZE / 20] {
        let data = set(&[7; 100], size / 110);
        let (most, _, columns) = memory(|| {
            let mut rows = ColumnBuilder::default();
            rows.decode_run(&data, 0, 0, NO_LIMIT).unwrap();
            rows.take()
        });
        columns.recycle();
        recycled.push(most);
    }
    assert!(recycled[1..].iter().all(|&most| most <= 1024), "{recycled:?}");
    // Bytes that come in pieces never take more than a few times what is there.
    let data = set(&[7; 100], SIZE / 110);
    let (most, _, _) = memory(|| {
        let mut values = ByteStrings::default();
        (0..data.len()).step_by(11000).for_each(|at| {
            values.decode_run(&data[at..(at + 11000).min(data.len())], 0).unwrap();
        });
    });
    assert!(most <= 4 * SIZE, "{most}");
}
