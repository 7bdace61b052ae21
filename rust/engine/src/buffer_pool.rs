//! Memory of dropped columns, kept for new ones.
//!
//! Large blocks come from the system page by page, at their first touch, and return to it when they are freed: that
//! takes as long as decoding into them. So a bounded amount of freed memory is kept, for the whole process.

use std::sync::Mutex;

use crate::Error;

/// Smaller blocks are left to the allocator, which has its own free lists.
const MIN_BYTES: usize = 32 << 10;

/// Maximum number of blocks of one kind.
const MAX_BLOCKS: usize = 64;

/// Free blocks of one kind, the last freed one last.
///
/// A thread never waits for the lock: in a process forked while it was held, it would never be free again.
pub struct BufferPool<T> {
    blocks: Mutex<Vec<Vec<T>>>,
    max_bytes: usize,
}

impl<T> BufferPool<T> {
    const fn new(max_bytes: usize) -> Self {
        BufferPool { blocks: Mutex::new(Vec::new()), max_bytes }
    }

    /// A block for this many items, or up to twice as many.
    fn take(&self, items: usize) -> Option<Vec<T>> {
        let fitting = items..=items.saturating_mul(2);
        let mut blocks = self.blocks.try_lock().ok()?;
        let index = blocks.iter().rposition(|block| fitting.contains(&block.capacity()))?;
        Some(blocks.remove(index))
    }

    fn keep(&self, mut block: Vec<T>) {
        block.clear();
        if let Ok(mut blocks) = self.blocks.try_lock() {
            blocks.push(block);
            while blocks.len() > MAX_BLOCKS || blocks.iter().map(bytes_of).sum::<usize>() > self.max_bytes {
                blocks.remove(0);
            }
        }
    }
}

fn bytes_of<T>(block: &Vec<T>) -> usize {
    block.capacity().saturating_mul(size_of::<T>())
}

/// An item of a column.
pub trait Item: Copy + Send + 'static {
    /// The pool of blocks of these items.
    fn pool() -> &'static BufferPool<Self>;
}

/// Each kind with the maximum bytes kept: 8 MiB in all. More does not help (docs/topics/performance.md).
macro_rules! items {
    ($($kind:ty: $max:expr),*) => {$(
        impl Item for $kind {
            fn pool() -> &'static BufferPool<Self> {
                static POOL: BufferPool<$kind> = BufferPool::new($max);
                &POOL
            }
        }
    )*};
}

items!(u8: 5 << 20, i64: 2 << 20, i32: 1 << 20);

/// Drop a column and keep its memory for another one.
pub fn recycle<T: Item>(column: Vec<T>) {
    if bytes_of(&column) >= MIN_BYTES {
        T::pool().keep(column);
    }
}

/// Make room for `more` items if the pool has a block that large; allocate nothing.
pub(crate) fn prepare<T: Item>(column: &mut Vec<T>, more: usize) {
    let items = column.len().saturating_add(more);
    if items <= column.capacity() || items.saturating_mul(size_of::<T>()) < MIN_BYTES {
        return;
    }
    if let Some(mut block) = T::pool().take(items) {
        block.extend_from_slice(column);
        recycle(std::mem::replace(column, block));
    }
}

/// Make room for `more` items.
#[inline]
pub(crate) fn reserve<T: Item>(column: &mut Vec<T>, more: usize) -> Result<(), Error> {
    if more <= column.capacity().saturating_sub(column.len()) { Ok(()) } else { grow(column, more) }
}

#[cold]
fn grow<T: Item>(column: &mut Vec<T>, more: usize) -> Result<(), Error> {
    prepare(column, more);
    Ok(column.try_reserve(more)?)
}

/// Free unused capacity. A block that will be recycled may keep a quarter of its length: the next column will be about
/// as long, but not exactly.
pub(crate) fn trim<T: Item>(column: &mut Vec<T>) {
    let len = column.len();
    if len.saturating_mul(size_of::<T>()) < MIN_BYTES {
        column.shrink_to_fit();
    } else if column.capacity() > len.saturating_add(len / 4) {
        column.shrink_to(len.saturating_add(len / 8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> BufferPool<u8> {
        BufferPool::new(10_000)
    }

    #[test]
    fn the_last_freed_block_that_fits_is_taken_first() {
        let pool = pool();
        for capacity in [100, 150, 1000, 90] {
            pool.keep(Vec::with_capacity(capacity));
        }
        assert_eq!(pool.take(95).map(|block| block.capacity()), Some(150));
        assert_eq!(pool.take(95).map(|block| block.capacity()), Some(100));
        assert_eq!(pool.take(95), None); // 1000 is too large
    }

    #[test]
    fn the_oldest_are_freed_beyond_the_maximum_of_bytes() {
        let pool = pool();
        for capacity in [5000, 4000, 3000] {
            pool.keep(Vec::with_capacity(capacity));
        }
        assert_eq!(pool.take(5000), None);
        assert_eq!(pool.take(4000).map(|block| block.capacity()), Some(4000));
        pool.keep(Vec::with_capacity(20_000));
        assert_eq!((pool.take(20_000), pool.take(3000)), (None, None));
    }

    #[test]
    fn the_oldest_are_freed_beyond_the_maximum_of_blocks() {
        let pool = pool();
        for capacity in 1..=MAX_BLOCKS + 1 {
            pool.keep(Vec::with_capacity(capacity));
        }
        assert_eq!(pool.blocks.lock().map(|blocks| blocks.len()).ok(), Some(MAX_BLOCKS));
        assert_eq!(pool.take(1).map(|block| block.capacity()), Some(2));
    }

    #[test]
    fn no_thread_waits_for_the_lock() {
        let pool = pool();
        pool.keep(Vec::with_capacity(100));
        let other = pool.blocks.lock();
        assert_eq!(pool.take(100), None);
        pool.keep(Vec::with_capacity(200));
        drop(other);
        assert_eq!(pool.take(200), None);
        assert!(pool.take(100).is_some());
    }
}
