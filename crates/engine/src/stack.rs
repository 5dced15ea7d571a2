//! The batches of several micro-batches side by side, so that one pass can go over all their rows.
//!
//! It is filled by copies, since a loader wants its buffers back at once. This file does not know the model.

use crate::batch::{BatchView, Inputs, Targets};
use crate::flat::Flat;

/// One side of the batches: inputs or targets.
#[derive(Debug)]
pub(crate) enum Side {
    /// Values, so many a row.
    Values(Flat, usize),
    /// Token or class ids, so many a row.
    Ids(Vec<u32>, usize),
}

impl Side {
    /// Room for `rows` rows of `width` values.
    pub(crate) fn values(rows: usize, width: usize) -> Self {
        Self::Values(Flat::zeros(rows * width), width)
    }

    /// Room for `rows` rows of `width` ids.
    pub(crate) fn ids(rows: usize, width: usize) -> Self {
        Self::Ids(vec![0; rows * width], width)
    }

    /// Elements, of 4 bytes each.
    fn len(&self) -> usize {
        match self {
            Self::Values(values, _) => values.len(),
            Self::Ids(ids, _) => ids.len(),
        }
    }

    fn put_values(&mut self, first: usize, from: &[f32]) {
        let Self::Values(to, width) = self else { panic!("the batch was checked: it has no ids here") };
        to[first * *width..][..from.len()].copy_from_slice(from);
    }

    fn put_ids(&mut self, first: usize, from: &[u32]) {
        let Self::Ids(to, width) = self else { panic!("the batch was checked: it has no values here") };
        to[first * *width..][..from.len()].copy_from_slice(from);
    }
}

/// Room for the batches of a group. See the file's comment.
#[derive(Debug)]
pub(crate) struct Stack {
    /// Rows of the micro-batch at each place; 0 where none was laid yet.
    rows: Vec<usize>,
    /// Rows from one place to the next: those of a full micro-batch.
    each: usize,
    inputs: Side,
    targets: Side,
}

impl Stack {
    /// Room for `group` batches of `each` rows, on both sides.
    pub(crate) fn new(group: usize, each: usize, inputs: Side, targets: Side) -> Self {
        Self { rows: vec![0; group], each, inputs, targets }
    }

    /// Elements of both sides.
    pub(crate) fn len(&self) -> usize {
        self.inputs.len() + self.targets.len()
    }

    /// Copies a batch, which was checked, to its place.
    pub(crate) fn lay(&mut self, place: usize, batch: &BatchView<'_>) {
        let first = place * self.each;
        self.rows[place] = batch.rows;
        match batch.inputs {
            Inputs::Values(x) => self.inputs.put_values(first, x),
            Inputs::Tokens(x) => self.inputs.put_ids(first, x),
        }
        match batch.targets {
            Targets::Values(t) => self.targets.put_values(first, t),
            Targets::Classes(t) | Targets::Mixed(t) => self.targets.put_ids(first, t),
        }
    }

    /// Rows of the micro-batch at each place.
    pub(crate) fn rows(&self) -> &[usize] {
        &self.rows
    }

    /// The first `count` batches as one; `classes` makes targets of ids.
    ///
    /// *Panics* if one of them was never laid, or one but the last is shorter than a full one.
    pub(crate) fn batch<'a>(
        &'a self,
        count: usize,
        classes: impl Fn(&'a [u32]) -> Targets<'a>,
    ) -> BatchView<'a> {
        let (last, others) = self.rows[..count].split_last().expect("a group has a micro-batch");
        let is_whole = *last > 0 && others.iter().all(|rows| *rows == self.each);
        assert!(is_whole, "micro-batches of {:?} rows where {} are full", &self.rows[..count], self.each);
        let rows = others.len() * self.each + last;
        BatchView {
            rows,
            inputs: match &self.inputs {
                Side::Values(x, width) => Inputs::Values(&x[..rows * width]),
                Side::Ids(x, width) => Inputs::Tokens(&x[..rows * width]),
            },
            targets: match &self.targets {
                Side::Values(t, width) => Targets::Values(&t[..rows * width]),
                Side::Ids(t, width) => classes(&t[..rows * width]),
            },
        }
    }
}
