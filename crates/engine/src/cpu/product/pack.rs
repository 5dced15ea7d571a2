//! Bringing operands into the forms that tiles read.
//!
//! `B` becomes panels: the columns of a tile side by side, row after row of `k`, the last panel padded with
//! zeros. `A` becomes a strip or an interleaved block (see [`Form`]). Packing moves values and does no arithmetic.
//!
//! This file does not know the loops around it.

use super::tile::{Form, MOST_COLUMNS, STRIP_ROW, Size, fetch};
use crate::cpu::isa::Have;
use crate::device::Strides;
use std::ops::Range;

/// Elements of `columns` columns by `k` rows in panels.
pub(in crate::cpu) fn panels_len(isa: Have, k: usize, columns: usize) -> usize {
    columns.next_multiple_of(Size::of(isa).columns) * k
}

/// Packs rows `k` and columns `n` of a matrix into panels.
pub(in crate::cpu) fn panels(
    isa: Have,
    x: &[f32],
    strides: Strides,
    k: Range<usize>,
    n: Range<usize>,
    out: &mut [f32],
) {
    let width = Size::of(isa).columns;
    let depth = k.len();
    let out = &mut out[..panels_len(isa, depth, n.len())];
    if strides.col == 1 {
        let x = &x[k.start * strides.row + n.start..];
        return match width {
            16 => rows_into_panels::<16>(isa, x, strides.row, n.len(), depth, out),
            _ => rows_into_panels::<MOST_COLUMNS>(isa, x, strides.row, n.len(), depth, out),
        };
    }
    for (panel, out) in out.chunks_exact_mut(width * depth).enumerate() {
        let first = n.start + panel * width;
        let columns = width.min(n.end - first);
        let x = &x[k.start * strides.row + first * strides.col..];
        columns_into_panel(isa, x, strides, columns, width, out);
    }
}

/// Rows of the source that are asked for before they are read. Each is in another page, so nobody else foresees them.
const ROWS_AHEAD: usize = 8;
/// Panels that are filled side by side: their rows may lie a power of two apart, and a set of the cache holds eight lines.
const PANELS_AT_ONCE: usize = 8;

/// Panels whose rows are contiguous in the source: row after row of all of them, as the source lies.
fn rows_into_panels<const WIDTH: usize>(
    isa: Have,
    x: &[f32],
    row: usize,
    columns: usize,
    depth: usize,
    out: &mut [f32],
) {
    assert_eq!(Size::of(isa).columns, WIDTH, "a panel's width");
    let at_once = PANELS_AT_ONCE * WIDTH;
    for (first, out) in (0..columns).step_by(at_once).zip(out.chunks_mut(at_once * depth)) {
        let columns = at_once.min(columns - first);
        for k in 0..depth {
            let from = &x[first + k * row..][..columns];
            fetch(from.as_ptr().wrapping_add(ROWS_AHEAD * row), columns);
            let (whole, rest) = from.as_chunks::<WIDTH>();
            let mut to = out[k * WIDTH..].chunks_mut(depth * WIDTH);
            for (from, to) in whole.iter().zip(&mut to) {
                to[..WIDTH].copy_from_slice(from);
            }
            if let (false, Some(to)) = (rest.is_empty(), to.next()) {
                to[..rest.len()].copy_from_slice(rest);
                to[rest.len()..WIDTH].fill(0.0);
            }
        }
    }
}

/// A panel whose columns are contiguous in the source, or neither.
fn columns_into_panel(isa: Have, x: &[f32], strides: Strides, columns: usize, width: usize, out: &mut [f32]) {
    if columns < width {
        out.fill(0.0);
    }
    let depth = out.len() / width;
    if strides.row == 1 {
        return super::transpose::transpose(isa, x, strides.col, columns, depth, out, width);
    }
    for (k, out) in out.chunks_exact_mut(width).enumerate() {
        for (column, out) in out[..columns].iter_mut().enumerate() {
            *out = x[k * strides.row + column * strides.col];
        }
    }
}

/// The form in which rows of `A` with these strides are packed.
pub(super) fn form_of(strides: Strides) -> Form {
    if strides.col == 1 { Form::Strip } else { Form::Interleaved }
}

/// Packs rows `m` and columns `k` of `A` for one tile.
pub(super) fn rows(x: &[f32], strides: Strides, m: Range<usize>, k: Range<usize>, out: &mut [f32]) {
    let x = &x[m.start * strides.row + k.start * strides.col..];
    let (count, depth) = (m.len(), k.len());
    if strides.col == 1 {
        for (i, out) in out.chunks_mut(STRIP_ROW).take(count).enumerate() {
            out[..depth].copy_from_slice(&x[i * strides.row..][..depth]);
        }
    } else {
        interleaved_at(x, strides, count, depth, out);
    }
}

/// The same as an interleaved block, whatever the strides.
pub(super) fn interleaved(x: &[f32], strides: Strides, m: Range<usize>, k: Range<usize>, out: &mut [f32]) {
    let x = &x[m.start * strides.row + k.start * strides.col..];
    interleaved_at(x, strides, m.len(), k.len(), out);
}

fn interleaved_at(x: &[f32], strides: Strides, count: usize, depth: usize, out: &mut [f32]) {
    if strides.row == 1 {
        for (k, out) in out.chunks_exact_mut(count).take(depth).enumerate() {
            for (out, &v) in out.iter_mut().zip(&x[k * strides.col..][..count]) {
                *out = v;
            }
        }
    } else {
        for (k, out) in out.chunks_exact_mut(count).take(depth).enumerate() {
            for (i, out) in out.iter_mut().enumerate() {
                *out = x[k * strides.col + i * strides.row];
            }
        }
    }
}
