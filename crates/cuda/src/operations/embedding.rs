//! Look-up tables of tokens and places, and their gradients.
//!
//! This file does not know what an id stands for.

use super::{Floats, FloatsMut, Ids, THREADS, Values, ValuesMut, room, same, size};
use crate::kernels;
use crate::launch::{KernelLaunch, Queue};
use crate::memory::SliceMut;
use dtrain_engine::device::{Rows, Write};

fn entries(len: usize, width: usize) -> u32 {
    assert!(width > 0 && len.is_multiple_of(width), "a table of {len} elements in rows of {width}");
    size(len / width)
}

/// `y[i] = table[ids[i]] + places[i % time]`; `places` may be absent. The host has checked the ids.
pub fn embedding<'y>(
    queue: &impl Queue,
    shape: Rows,
    ids: Ids<'_>,
    table: Floats<'_>,
    places: Option<(Floats<'_>, usize)>,
    y: impl Into<ValuesMut<'y>>,
) {
    let (Rows { rows, width }, mut y) = (shape, y.into());
    same("ids", ids.len(), rows);
    same("y", y.len(), rows * width);
    let entries = entries(table.len(), width);
    let (places, time) = places.map_or((None, 1), |(places, time)| (Some(places), time));
    room("places", places.map_or(time * width, |places| places.len()), time * width);
    if rows > 0 {
        let [width, time] = [width, time].map(|n| size(n).into());
        let len = (y.len() as u64).into();
        let count = y.len();
        let arguments =
            [ids.into(), table.into(), places.into(), (&mut y).into(), len, width, entries.into(), time];
        let storage = y.storage();
        let kernel = storage.of([&kernels::EMBEDDING, &kernels::EMBEDDING_BF16, &kernels::EMBEDDING_F16]);
        // Of the table the rows that are named; the places stay in a cache.
        let bytes = 4 * rows + count * (4 + storage.bytes());
        queue.launch(&KernelLaunch::over(kernel, count, arguments).moves(bytes));
    }
}

/// What the gradient of a table of embeddings writes.
pub struct TableGradient<'a> {
    /// Whether it is overwritten (zero where nothing came) or added to what is there.
    pub write: Write,
    /// The gradient.
    pub dtable: FloatsMut<'a>,
}

/// Gradients of an embedding, rows added in order: that of the table overwritten (zero where nothing came) or added to what is
/// there, that of places overwritten. `order` is memory for one word a row.
pub fn embedding_gradient<'x>(
    queue: &impl Queue,
    shape: Rows,
    ids: Ids<'_>,
    dy: impl Into<Values<'x>>,
    table: TableGradient<'_>,
    dplaces: Option<(FloatsMut<'_>, usize)>,
    mut order: SliceMut<'_, u32>,
) {
    let (Rows { rows, width }, dy) = (shape, dy.into());
    let TableGradient { write, mut dtable } = table;
    same("ids", ids.len(), rows);
    same("dy", dy.len(), rows * width);
    room("order", order.len(), rows);
    let entries = entries(dtable.len(), width);
    let all = 0..dtable.len();
    if write == Write::Set {
        super::fill(queue, dtable.part(all), 0.0);
    }
    if rows > 0 {
        let arguments = [ids.into(), (&mut order).into(), size(rows).into()];
        queue.launch(&KernelLaunch::new(&kernels::EMBEDDING_ORDER, rows.div_ceil(THREADS), arguments));
        let [rows_, width] = [rows, width].map(|n| size(n).into());
        let arguments =
            [ids.into(), order.read().into(), dy.into(), (&mut dtable).into(), rows_, width, entries.into()];
        let storage = dy.storage();
        let kernel = storage.of([
            &kernels::EMBEDDING_GRADIENT,
            &kernels::EMBEDDING_GRADIENT_BF16,
            &kernels::EMBEDDING_GRADIENT_F16,
        ]);
        // Rows that are named are read and written; there are no more than rows of ids.
        let bytes = 8 * rows + rows * shape.width * (storage.bytes() + 8);
        queue.launch(&KernelLaunch::new(kernel, rows, arguments).moves(bytes));
    }
    let Some((mut dplaces, time)) = dplaces else { return };
    room("dplaces", dplaces.len(), time * width);
    let len = dplaces.len();
    if len > 0 {
        let [rows, width, time] = [rows, width, time].map(|n| size(n).into());
        let arguments = [dy.into(), (&mut dplaces).into(), (len as u64).into(), rows, width, time];
        let kernel = dy.storage().of([
            &kernels::PLACES_GRADIENT,
            &kernels::PLACES_GRADIENT_BF16,
            &kernels::PLACES_GRADIENT_F16,
        ]);
        queue.launch(&KernelLaunch::over(kernel, len, arguments));
    }
}
