//! Memory that columns have had and others may have again.
//!
//! Large blocks come from the system page by page, at their first touch, and go back when they are freed: that takes as
//! long as decoding into them. So a bounded part of what is given up is kept, for the whole process.

use std::sync::Mutex;

use crate::Error;

/// Blocks below this come from the allocator's own stock.
const WORTH_BYTES: usize = 32 << 10;

/// How many blocks of a kind are kept, at most.
const MOST_BLOCKS: usize = 64;

/// Blocks of one kind that nobody uses, the one given up last behind the others.
///
/// Nobody waits for another one: in a process that was forked in between, the lock may never be free again.
pub struct BufferPool<T> {
    blocks: Mutex<Vec<Vec<T>>>,
    most_bytes: usize,
}

impl<T> BufferPool<T> {
    const fn new(most_bytes: usize) -> Self {
        BufferPool { blocks: Mutex::new(Vec::new()), most_bytes }
    }

    /// One for so many items, or up to twice as many.
    fn take(&self, items: usize) -> Option<Vec<T>> {
        let fitting = items..=items.saturating_mul(2);
        let mut blocks = self.blocks.try_lock().ok()?;
        let place = blocks.iter().rposition(|block| fitting.contains(&block.capacity()))?;
        Some(blocks.remove(place))
    }

    fn keep(&self, mut block: Vec<T>) {
        block.clear();
        if let Ok(mut blocks) = self.blocks.try_lock() {
            blocks.push(block);
            while blocks.len() > MOST_BLOCKS || blocks.iter().map(bytes_of).sum::<usize>() > self.most_bytes {
                blocks.remove(0);
            }
        }
    }
}

fn bytes_of<T>(block: &Vec<T>) -> usize {
    block.capacity().saturating_mul(size_of::<T>())
}

/// What columns are made of.
pub trait Item: Copy + Send + 'static {
    /// Where blocks of these are kept.
    fn pool() -> &'static BufferPool<Self>;
}

/// Each kind with the most bytes of it that are kept: 8 MiB in all. More brings nothing (docs/topics/performance.md).
macro_rules! items {
    ($($kind:ty: $most:expr),*) => {$(
        impl Item for $kind {
            fn pool() -> &'static BufferPool<Self> {
                static POOL: BufferPool<$kind> = BufferPool::new($most);
                &POOL
            }
        }
    )*};
}

items!(u8: 5 << 20, i64: 2 << 20, i32: 1 << 20);

/// Give up a column: its memory may become another one's.
pub fn recycle<T: Item>(column: Vec<T>) {
    if bytes_of(&column) >= WORTH_BYTES {
        T::pool().keep(column);
    }
}

/// Room for so many more, if there is a spare block with that much; of new memory nothing is taken.
pub(crate) fn prepare<T: Item>(column: &mut Vec<T>, more: usize) {
    let items = column.len().saturating_add(more);
    if items <= column.capacity() || items.saturating_mul(size_of::<T>()) < WORTH_BYTES {
        return;
    }
    if let Some(mut block) = T::pool().take(items) {
        block.extend_from_slice(column);
        recycle(std::mem::replace(column, block));
    }
}

/// Room for so many more.
pub(crate) fn reserve<T: Item>(column: &mut Vec<T>, more: usize) -> Result<(), Error> {
    prepare(column, more);
    Ok(column.try_reserve(more)?)
}

/// Give back what it has too much. A quarter of what is in use may stay in a block that is worth being used again: the
/// next column will be about as long, but not exactly.
pub(crate) fn trim<T: Item>(column: &mut Vec<T>) {
    let len = column.len();
    if len.saturating_mul(size_of::<T>()) < WORTH_BYTES {
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
    fn what_was_given_up_last_and_is_large_enough_is_taken_first() {
        let pool = pool();
        for capacity in [100, 150, 1000, 90] {
            pool.keep(Vec::with_capacity(capacity));
        }
        assert_eq!(pool.take(95).map(|block| block.capacity()), Some(150));
        assert_eq!(pool.take(95).map(|block| block.capacity()), Some(100));
        assert_eq!(pool.take(95), None); // 1000 is too much for so little
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_bytes() {
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
    fn the_oldest_go_when_there_are_too_many_blocks() {
        let pool = pool();
        for capacity in 1..=MOST_BLOCKS + 1 {
            pool.keep(Vec::with_capacity(capacity));
        }
        assert_eq!(pool.blocks.lock().map(|blocks| blocks.len()).ok(), Some(MOST_BLOCKS));
        assert_eq!(pool.take(1).map(|block| block.capacity()), Some(2));
    }

    #[test]
    fn nobody_waits_for_another_one() {
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
