//! Checks of embeddings: the CPU's bits.

use super::{Buffer, Extent, StandIn, cpu, ids, numbers};
use dtrain_cuda::operations;
use dtrain_cuda::operations::TableGradient;
use dtrain_engine::device::{Device, Rows, Write};

/// Rows, width, entries, time.
const SHAPES: [(usize, usize, usize, usize); 5] =
    [(1, 1, 1, 1), (600, 3, 11, 20), (257, 5, 700, 300), (40, 300, 2, 7), (37, 20, 11, 5)];

pub fn embedding(q: &StandIn, extent: Extent) {
    for &(rows, width, entries, time) in extent.of(1, &SHAPES) {
        let (tokens, table, places) =
            (ids(3, rows, entries as u32), numbers(1, entries * width), numbers(2, time * width));
        let (tokens_, table_, places_) =
            (Buffer::of(q, "ids", &tokens), Buffer::of(q, "table", &table), Buffer::of(q, "places", &places));
        for with_places in [false, true] {
            let y = Buffer::empty(q, "y", rows * width);
            let shape = Rows { rows, width };
            let given = with_places.then(|| (places_.read(), time));
            operations::embedding(q, shape, tokens_.read(), table_.read(), given, y.write());
            let mut wanted = vec![0.0; rows * width];
            cpu().embedding(shape, &tokens, &table, with_places.then_some((&places[..], time)), &mut wanted);
            y.has_bits(&format!("embedding of {shape:?}"), &wanted);
        }
    }
}

pub fn embedding_gradient(q: &StandIn, extent: Extent) {
    for &shape in extent.of(1, &SHAPES) {
        gradient_of(q, shape);
    }
}

fn gradient_of(q: &StandIn, (rows, width, entries, time): (usize, usize, usize, usize)) {
    let (tokens, dy) = (ids(3, rows, entries as u32), numbers(4, rows * width));
    let (tokens_, dy_) = (Buffer::of(q, "ids", &tokens), Buffer::of(q, "dy", &dy));
    for with_places in [false, true] {
        let table = Buffer::empty(q, "dtable", entries * width);
        // More places than there is time: the rest is zero.
        let places = Buffer::empty(q, "dplaces", (time + 2) * width);
        let order = Buffer::<u32>::empty(q, "order", rows);
        let shape = Rows { rows, width };
        let given = with_places.then(|| (places.write(), time));
        operations::embedding_gradient(
            q,
            shape,
            tokens_.read(),
            dy_.read(),
            TableGradient { write: Write::Set, dtable: table.write() },
            given,
            order.write(),
        );
        let (mut dtable, mut dplaces) = (vec![0.0; entries * width], vec![0.0; (time + 2) * width]);
        let given = with_places.then_some((&mut dplaces[..], time));
        cpu().embedding_gradient(shape, &tokens, &dy, Write::Set, &mut dtable, given);
        table.has_bits(&format!("embedding_gradient of {shape:?}"), &dtable);
        // Once more, on top of what is there.
        operations::embedding_gradient(
            q,
            shape,
            tokens_.read(),
            dy_.read(),
            TableGradient { write: Write::Add, dtable: table.write() },
            None,
            order.write(),
        );
        cpu().embedding_gradient(shape, &tokens, &dy, Write::Add, &mut dtable, None);
        table.has_bits(&format!("embedding_gradient of {shape:?}, added"), &dtable);
        let mut sorted: Vec<u32> = (0..rows as u32).collect();
        sorted.sort_by_key(|&row| tokens[row as usize]);
        order.has_bits("rows sorted by id", &sorted);
        if with_places {
            places.has_bits(&format!("places_gradient of {shape:?}"), &dplaces);
        }
    }
}

/// More rows than a block sorts, and ids that come again in others.
pub fn order_of_many(q: &StandIn, _: Extent) {
    gradient_of(q, SHAPES[1]);
}

/// An id beyond the table gives NaN, and its gradient goes nowhere.
pub fn wrong_ids(q: &StandIn, _: Extent) {
    let (table, ids, dy) = (numbers(1, 12), [3, 4, u32::MAX], numbers(2, 9));
    let (table_, ids_, dy_) =
        (Buffer::of(q, "table", &table), Buffer::of(q, "ids", &ids), Buffer::of(q, "dy", &dy));
    let (y, dtable) = (Buffer::empty(q, "y", 9), Buffer::empty(q, "dtable", 12));
    let order = Buffer::<u32>::empty(q, "order", 3);
    let shape = Rows { rows: 3, width: 3 };
    operations::embedding(q, shape, ids_.read(), table_.read(), None, y.write());
    if y.now()[..3] != table[9..] || !y.now()[3..].iter().all(|v| v.is_nan()) {
        q.wrong(format!("wrong ids gave {:?}", y.now()));
    }
    operations::embedding_gradient(
        q,
        shape,
        ids_.read(),
        dy_.read(),
        TableGradient { write: Write::Set, dtable: dtable.write() },
        None,
        order.write(),
    );
    let wanted: Vec<f32> = [0.0; 9].into_iter().chain(dy[..3].iter().copied()).collect();
    dtable.has_bits("gradients of wrong ids", &wanted);
}
