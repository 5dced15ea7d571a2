//! Look-up tables of tokens and places, and their gradients.
//!
//! This file does not know what an id stands for.

use super::isa::on_every_isa;
use crate::device::Write;

on_every_isa! {
    /// Some rows of an embedding; `first` is the index of the first, `places` is empty or a table of `time` rows.
    pub(super) fn embedding(
        width: usize,
        first: usize,
        ids: &[u32],
        table: &[f32],
        places: &[f32],
        time: usize,
        y: &mut [f32],
    ) {
        for (row, (y, &id)) in y.chunks_exact_mut(width).zip(ids).enumerate() {
            let entry = &table[id as usize * width..][..width];
            if places.is_empty() {
                y.copy_from_slice(entry);
                continue;
            }
            let place = &places[(first + row) % time * width..][..width];
            for ((y, &a), &b) in y.iter_mut().zip(entry).zip(place) {
                *y = a + b;
            }
        }
    }
}

on_every_isa! {
    /// Gradients of an embedding, rows added in order; for places always from zero.
    pub(super) fn embedding_gradient(
        width: usize,
        ids: &[u32],
        dy: &[f32],
        write: Write,
        dtable: &mut [f32],
        dplaces: &mut [f32],
        time: usize,
    ) {
        let places = dplaces.len();
        assert!(places == 0 || places >= time * width, "{places} for {time} places");
        if write == Write::Set {
            dtable.fill(0.0);
        }
        dplaces.fill(0.0);
        for (row, (dy, &id)) in dy.chunks_exact(width).zip(ids).enumerate() {
            for (d, &v) in dtable[id as usize * width..][..width].iter_mut().zip(dy) {
                *d += v;
            }
            if !dplaces.is_empty() {
                for (d, &v) in dplaces[row % time * width..][..width].iter_mut().zip(dy) {
                    *d += v;
                }
            }
        }
    }
}
