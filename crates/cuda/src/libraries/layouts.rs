//! The engine's products, whose rows are contiguous, in the words of a library whose columns are.
//!
//! A matrix by rows is its transpose by columns. So `C = A B` is asked for as `C' = B' A'`: the left operand is the engine's
//! `B`, the right one its `A`, and `m` and `n` change places. Nothing is copied.
//!
//! This file does not know a library.

use dtrain_engine::device::{Product, Strides};
use serde::{Deserialize, Serialize};

/// A matrix by columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// Rows as they lie in memory.
    pub rows: u64,
    /// Columns as they lie in memory.
    pub columns: u64,
    /// Elements from one column to the next.
    pub pitch: u64,
    /// Whether its transpose is the operand.
    pub turned: bool,
}

/// A product by columns: `out[m, n] = left[m, k] right[k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Layouts {
    /// The engine's `B`.
    pub left: Layout,
    /// The engine's `A`.
    pub right: Layout,
    /// The engine's `C`.
    pub out: Layout,
}

/// The operand with so many `rows` and `columns` by rows, as its transpose by columns; nothing where neither rows nor columns
/// are contiguous, or where they overlap.
fn turned_over(rows: usize, columns: usize, strides: Strides) -> Option<Layout> {
    let layout = |rows: usize, columns: usize, pitch: usize, turned| {
        // Of one column no pitch is ever used, but one that is less than its length is refused.
        let pitch = if columns > 1 { pitch } else { pitch.max(rows) };
        let layout = Layout { rows: rows as u64, columns: columns as u64, pitch: pitch as u64, turned };
        (pitch >= rows).then_some(layout)
    };
    let by_rows = (strides.col == 1 || columns == 1).then(|| layout(columns, rows, strides.row, false));
    let by_columns = (strides.row == 1 || rows == 1).then(|| layout(rows, columns, strides.col, true));
    by_rows.flatten().or(by_columns.flatten())
}

impl Layouts {
    /// Of a product; nothing where the strides of an operand cannot be said by columns, or where it is empty.
    #[must_use]
    pub fn of(shape: &Product) -> Option<Self> {
        let Product { m, n, k, .. } = *shape;
        if m * n * k == 0 {
            return None;
        }
        Some(Self {
            left: turned_over(k, n, shape.b)?,
            right: turned_over(m, k, shape.a)?,
            out: turned_over(m, n, Strides::rows(shape.c_row)).filter(|out| !out.turned)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_engine::device::Write;

    fn product([m, n, k]: [usize; 3], a: Strides, b: Strides, c_row: usize) -> Product {
        Product { m, n, k, a, b, c_row, write: Write::Set }
    }

    /// An element of the operand that a layout describes, as a library by columns reads it.
    fn element(layout: &Layout, x: &[f64], row: usize, column: usize) -> f64 {
        let (row, column) = if layout.turned { (column, row) } else { (row, column) };
        assert!(
            (row as u64) < layout.rows && (column as u64) < layout.columns && layout.pitch >= layout.rows
        );
        x[row + column * layout.pitch as usize]
    }

    fn list(len: usize, site: usize) -> Vec<f64> {
        (0..len).map(|i| ((i * 37 + site * 11) % 101) as f64 - 50.0).collect()
    }

    /// Both ways, from the same memory into the same memory.
    fn agree(shape: &Product) {
        let Product { m, n, k, a, b, c_row, .. } = *shape;
        let far = |rows: usize, columns: usize, s: Strides| (rows - 1) * s.row + (columns - 1) * s.col + 1;
        let (x, y) = (list(far(m, k, a), 1), list(far(k, n, b), 2));
        let mut wanted = vec![0.0; far(m, n, Strides::rows(c_row))];
        let mut found = wanted.clone();
        for i in 0..m {
            for j in 0..n {
                let terms = (0..k).map(|l| x[i * a.row + l * a.col] * y[l * b.row + j * b.col]);
                wanted[i * c_row + j] = terms.sum();
            }
        }
        let layouts = Layouts::of(shape).unwrap_or_else(|| panic!("{shape:?}"));
        let out = layouts.out;
        assert_eq!((out.rows, out.columns), (n as u64, m as u64));
        for i in 0..n {
            for j in 0..m {
                let terms =
                    (0..k).map(|l| element(&layouts.left, &y, i, l) * element(&layouts.right, &x, l, j));
                found[i + j * out.pitch as usize] = terms.sum();
            }
        }
        assert_eq!(found, wanted, "{shape:?} as {layouts:?}");
    }

    #[test]
    fn a_product_by_rows_is_the_same_numbers_by_columns() {
        for [m, n, k] in [[1, 1, 1], [1, 5, 3], [5, 1, 3], [4, 3, 1], [7, 5, 6]] {
            for more in [0, 2] {
                let a = [Strides::rows(k + more), Strides::transposed(m + more)];
                let b = [Strides::rows(n + more), Strides::transposed(k + more)];
                for (a, b) in a.into_iter().flat_map(|a| b.map(|b| (a, b))) {
                    agree(&product([m, n, k], a, b, n + more));
                }
            }
        }
    }

    #[test]
    fn the_three_products_of_a_linear_layer_have_these_layouts() {
        let (rows, inputs, width) = (64, 512, 128);
        let layout = |rows, columns, pitch, turned| Layout { rows, columns, pitch, turned };
        // y[rows, width] = x[rows, inputs] w[width, inputs]'
        let forward =
            product([rows, width, inputs], Strides::rows(inputs), Strides::transposed(inputs), width);
        let wanted = [layout(512, 128, 512, true), layout(512, 64, 512, false), layout(128, 64, 128, false)];
        assert_eq!(Layouts::of(&forward).map(|l| [l.left, l.right, l.out]), Some(wanted));
        // dx[rows, inputs] = dy[rows, width] w[width, inputs]
        let input = product([rows, inputs, width], Strides::rows(width), Strides::rows(inputs), inputs);
        let wanted = [layout(512, 128, 512, false), layout(128, 64, 128, false), layout(512, 64, 512, false)];
        assert_eq!(Layouts::of(&input).map(|l| [l.left, l.right, l.out]), Some(wanted));
        // dw[width, inputs] = dy[rows, width]' x[rows, inputs]
        let weight =
            product([width, inputs, rows], Strides::transposed(width), Strides::rows(inputs), inputs);
        let wanted = [layout(512, 64, 512, false), layout(128, 64, 128, true), layout(512, 128, 512, false)];
        assert_eq!(Layouts::of(&weight).map(|l| [l.left, l.right, l.out]), Some(wanted));
    }

    #[test]
    fn what_cannot_be_said_by_columns_is_not_said() {
        let odd = Strides { row: 40, col: 3 };
        assert_eq!(Layouts::of(&product([9, 11, 13], odd, Strides::rows(11), 11)), None);
        assert_eq!(Layouts::of(&product([9, 11, 13], Strides::rows(13), odd, 11)), None);
        assert_eq!(
            Layouts::of(&product([9, 11, 13], Strides::rows(12), Strides::rows(11), 11)),
            None,
            "rows overlap"
        );
        assert_eq!(Layouts::of(&product([9, 11, 0], Strides::rows(1), Strides::rows(11), 11)), None, "empty");
    }
}
