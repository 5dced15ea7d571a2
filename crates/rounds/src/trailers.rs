//! Trailers of micro-batches, added up. It does not know whence they come.

use dtrain_types::{Merger, Trailer};

/// Subtrees that wait while trailers are added: enough for any number of micro-batches.
const MOST_PENDING: usize = 33;

/// Trailers of micro-batches that follow one another, added in tree order.
pub fn in_tree_order(trailers: impl Iterator<Item = Trailer>) -> Trailer {
    let mut pending = [Trailer::EMPTY; MOST_PENDING];
    let mut merger = Merger::default();
    for trailer in trailers {
        pending[merger.next_buffer()] = trailer;
        merger.push(|l, r| pending[l] = pending[l].merge(&pending[r]));
    }
    merger.finish(|l, r| pending[l] = pending[l].merge(&pending[r]));
    pending[0]
}
