//! `y = x + f(x)`, with `f` a chain of stages.
//!
//! Where `f` overwrites the gradient it is given, or needs its own output again, this stage keeps a copy: `f` does
//! not know that it is inside a residual.

use super::Chain;
use crate::describe::Description;
use crate::device::Device;
use crate::stage::{ArenaPlan, Backward, Forward, GradientUse, Needs, ParamLayout, Pass, Shape, Stage};

/// A residual block. See the file's comment.
pub struct Residual<D: Device> {
    inner: Chain<D>,
    /// Elements per sample of input and output.
    per_row: usize,
    /// What the chain saves; its own output lies behind that, where it needs it.
    saved: usize,
    /// What the chain uses of scratch; a copy of `dy` lies behind that, where it is overwritten.
    scratch: usize,
}

impl<D: Device> Residual<D> {
    /// `y = x + inner(x)`.
    #[must_use]
    pub fn new(inner: Chain<D>) -> Self {
        Self { inner, per_row: 0, saved: 0, scratch: 0 }
    }
}

impl<D: Device> Stage<D> for Residual<D> {
    fn kind(&self) -> &'static str {
        "residual"
    }

    fn describe(&self) -> Description {
        Description::Residual(Box::new(self.inner.describe()))
    }

    fn layout(&self) -> &ParamLayout {
        self.inner.layout()
    }

    fn needs(&self) -> Needs {
        Needs::PLAIN
    }

    fn stacks(&self) -> bool {
        true
    }

    fn plan(&mut self, device: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        input.dims()?;
        let mut own = space.inner();
        let output = self.inner.plan(device, input, &mut own)?;
        if output != *input {
            return Err(format!(
                "its branch turns {:?} into {:?}, but both are added",
                input.dims()?,
                output.dims().unwrap_or(&[])
            ));
        }
        self.per_row = input.per_row();
        (self.saved, self.scratch) = (own.saved, own.scratch);
        let whole = input.rows() * self.per_row;
        let needs = self.inner.needs();
        space.absorb(&own);
        space.saved += own.saved + if needs.output { whole } else { 0 };
        space.scratch += own.scratch + if needs.gradient == GradientUse::Reads { 0 } else { whole };
        Ok(output)
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let Forward { params, stats, mut stat_sums, x, mut y, saved, scratch } = io;
        let len = self.per_row * pass.rows;
        let (mut saved, mut own) = D::split_mut(saved, self.saved);
        let (mut scratch, _) = D::split_mut(scratch, self.scratch);
        let keeps = self.inner.needs().output;
        self.inner.forward(
            pass,
            Forward {
                params: D::part(params, 0..D::len(params)),
                stats: D::part(stats, 0..D::len(stats)),
                stat_sums: stat_sums.as_mut().map(|sums| D::part_mut(sums, 0..D::len(stats))),
                x: x.shorter(),
                y: D::part_mut(if keeps { &mut own } else { &mut y }, 0..len),
                saved: D::part_mut(&mut saved, 0..self.saved),
                scratch: D::part_mut(&mut scratch, 0..self.scratch),
            },
        );
        match keeps {
            true => pass.device.add(D::part(D::read(&own), 0..len), x.values(), y),
            false => pass.device.add_to(x.values(), y),
        }
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let Backward { params, x, y: _, saved, mut dy, dx, mut grads, scratch } = io;
        let grads_len = D::len_mut(&grads);
        let len = self.per_row * pass.rows;
        let (mut saved, own) = D::split_mut(saved, self.saved);
        let (mut scratch, mut copy) = D::split_mut(scratch, self.scratch);
        let needs = self.inner.needs();
        let y = D::part(D::read(&own), 0..if needs.output { len } else { 0 });
        let spoiled = needs.gradient != GradientUse::Reads && dx.is_some();
        if spoiled {
            pass.device.copy(D::read(&dy), D::part_mut(&mut copy, 0..len));
        }
        let mut dx = dx;
        self.inner.backward(
            pass,
            Backward {
                params: D::part(params, 0..D::len(params)),
                x: x.shorter(),
                y,
                saved: D::part_mut(&mut saved, 0..self.saved),
                dy: D::part_mut(&mut dy, 0..len),
                dx: dx.as_mut().map(|dx| D::part_mut(dx, 0..len)),
                grads: D::part_mut(&mut grads, 0..grads_len),
                scratch: D::part_mut(&mut scratch, 0..self.scratch),
            },
        );
        let Some(dx) = dx else { return };
        let outer = if spoiled { D::part(D::read(&copy), 0..len) } else { D::read(&dy) };
        pass.device.add_to(outer, dx);
    }
}
