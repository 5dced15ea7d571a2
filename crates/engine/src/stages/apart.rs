//! A stage that takes one micro-batch at a time, inside a pass over several: its rows are cut, its sums added up.
//!
//! Gradients of parameters and sums of statistics go into buffers that are merged like a binary counter, each rounded where it
//! is whole; the first of them is where the sum belongs.
//!
//! This file does not know where anything lies, nor what a stage does.

use crate::device::Device;
use crate::stage::{Backward, Forward, Pass, Stage};
use dtrain_types::{Merger, Wire};
use std::ops::Range;

/// How the memory of a stage is cut.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Apart {
    /// Elements per sample of its input and output.
    pub(super) per_row: [usize; 2],
    /// Elements that it keeps for each micro-batch.
    pub(super) saved: usize,
    /// Elements at the head of its scratch in which sums wait for each other.
    pub(super) sums: usize,
}

/// Elements of the buffers in which sums of `len` elements over `group` micro-batches wait for each other.
pub(super) fn sums_len(len: usize, group: usize) -> usize {
    Merger::buffers(group as u32).saturating_sub(1) * len
}

/// Sums that are merged in tree order: `first` is buffer 0, the others lie behind one another.
struct Sums<'a, D: Device> {
    first: D::Mut<'a>,
    others: D::Mut<'a>,
    len: usize,
    wire: Wire,
}

impl<D: Device> Sums<'_, D> {
    /// The buffer that the next micro-batch fills.
    fn buffer(&mut self, index: usize) -> D::Mut<'_> {
        match index.checked_sub(1) {
            None => D::part_mut(&mut self.first, 0..self.len),
            Some(other) => D::part_mut(&mut self.others, other * self.len..(other + 1) * self.len),
        }
    }

    /// Rounds a buffer that is whole.
    fn round(&mut self, device: &D, index: usize) {
        if self.wire != Wire::F32 {
            device.round(self.wire, self.buffer(index));
        }
    }

    /// Adds buffer `right` to buffer `left`, the one before it, and rounds the sum.
    fn merge(&mut self, device: &D, left: usize, right: usize) {
        self.add(device, left, right);
        self.round(device, left);
    }

    fn add(&mut self, device: &D, left: usize, right: usize) {
        if self.len == 0 {
            return;
        }
        let Self { first, others, len, .. } = self;
        let from = (right - 1) * *len;
        let (mut before, mut rest) = D::split_mut(D::part_mut(others, 0..from + *len), from);
        let right = D::part_mut(&mut rest, 0..*len);
        match left.checked_sub(1) {
            None => device.add_to(D::read(&right), D::part_mut(first, 0..*len)),
            Some(left) => {
                device.add_to(D::read(&right), D::part_mut(&mut before, left * *len..(left + 1) * *len))
            }
        }
    }
}

fn scaled(rows: &Range<usize>, by: usize) -> Range<usize> {
    rows.start * by..rows.end * by
}

impl Apart {
    /// The forward pass, one micro-batch after the other.
    pub(super) fn forward<D: Device>(&self, stage: &dyn Stage<D>, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let Forward { params, frozen, stats, stat_sums, x, mut y, mut saved, scratch } = io;
        let (others, mut scratch) = D::split_mut(scratch, self.sums);
        let scratch_len = D::len_mut(&scratch);
        let mut sums =
            stat_sums.map(|first| Sums::<D> { first, others, len: D::len(stats), wire: pass.wire });
        let mut merger = Merger::default();
        for place in 0..pass.micro_batches() {
            let (one, rows) = pass.alone(place);
            stage.forward(
                &one,
                Forward {
                    params: D::part(params, 0..D::len(params)),
                    frozen: D::part(frozen, 0..D::len(frozen)),
                    stats: D::part(stats, 0..D::len(stats)),
                    stat_sums: sums.as_mut().map(|sums| sums.buffer(merger.next_buffer())),
                    x: x.part(scaled(&rows, self.per_row[0])),
                    y: D::part_mut(&mut y, scaled(&rows, self.per_row[1])),
                    saved: D::part_mut(&mut saved, place * self.saved..(place + 1) * self.saved),
                    scratch: D::part_mut(&mut scratch, 0..scratch_len),
                },
            );
            if let Some(sums) = &mut sums {
                sums.round(pass.device, merger.next_buffer());
            }
            merger.push(|left, right| add(pass.device, &mut sums, left, right));
        }
        merger.finish(|left, right| add(pass.device, &mut sums, left, right));
    }

    /// The backward pass, one micro-batch after the other.
    pub(super) fn backward<D: Device>(&self, stage: &dyn Stage<D>, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let Backward { params, frozen, x, y, mut saved, mut dy, mut dx, grads, scratch } = io;
        let (others, mut scratch) = D::split_mut(scratch, self.sums);
        let scratch_len = D::len_mut(&scratch);
        let mut sums = Sums::<D> { len: D::len_mut(&grads), first: grads, others, wire: pass.wire };
        let reads_output = stage.needs().output;
        let mut merger = Merger::default();
        for place in 0..pass.micro_batches() {
            let (one, rows) = pass.alone(place);
            let [x_part, y_part] = self.per_row.map(|by| scaled(&rows, by));
            stage.backward(
                &one,
                Backward {
                    params: D::part(params, 0..D::len(params)),
                    frozen: D::part(frozen, 0..D::len(frozen)),
                    x: x.part(x_part.clone()),
                    // One that nobody reads may be anything, and shorter.
                    y: D::part(y, if reads_output { y_part.clone() } else { 0..0 }),
                    saved: D::part_mut(&mut saved, place * self.saved..(place + 1) * self.saved),
                    dy: D::part_mut(&mut dy, y_part),
                    dx: dx.as_mut().map(|dx| D::part_mut(dx, x_part)),
                    grads: sums.buffer(merger.next_buffer()),
                    scratch: D::part_mut(&mut scratch, 0..scratch_len),
                },
            );
            sums.round(pass.device, merger.next_buffer());
            merger.push(|left, right| sums.merge(pass.device, left, right));
        }
        merger.finish(|left, right| sums.merge(pass.device, left, right));
    }
}

fn add<D: Device>(device: &D, sums: &mut Option<Sums<'_, D>>, left: usize, right: usize) {
    if let Some(sums) = sums {
        sums.merge(device, left, right);
    }
}
