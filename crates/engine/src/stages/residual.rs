//! `y = x + f(x)`, with `f` a chain of stages.
//!
//! Where `f` overwrites the gradient it is given, or needs its own output again, this stage keeps a copy: `f` does
//! not know that it is inside a residual.

use super::Chain;
use super::chain::Outer;
use super::lies::{Gradients, Inside, Parameters, Whole};
use crate::describe::Description;
use crate::device::Device;
use crate::param_layout::ParamLayout;
use crate::stage::{ArenaPlan, Backward, Forward, GradientUse, Needs, Pass, Shape, Stage};

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

    fn decodes(&self) -> bool {
        self.inner.decodes()
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
        let whole = device.activation_len(input.rows() * self.per_row);
        let needs = self.inner.needs();
        space.absorb(&own);
        space.saved += own.saved + if needs.output { whole } else { 0 };
        space.scratch += own.scratch + if needs.gradient == GradientUse::Reads { 0 } else { whole };
        Ok(output)
    }

    fn freeze(&mut self, prefix: &str, named: &dyn Fn(&str) -> bool) {
        self.inner.freeze(prefix, named);
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let Forward { params, frozen, stats, mut stat_sums, x, mut y, saved, scratch } = io;
        let len = self.per_row * pass.rows;
        let (mut saved, mut own) = D::split_mut(saved, self.saved);
        let (mut scratch, _) = D::split_mut(scratch, self.scratch);
        let mut own = self.inner.needs().output.then(|| pass.device.activations_mut(&mut own, len));
        let plus = (own.is_none() && self.inner.adds()).then(|| x.values());
        let mut params = Whole::<D>(params);
        let inner = Forward {
            params: &mut params as &mut dyn Parameters<D>,
            frozen: D::part(frozen, 0..D::len(frozen)),
            stats: D::part(stats, 0..D::len(stats)),
            stat_sums: stat_sums.as_mut().map(|sums| D::part_mut(sums, 0..D::len(stats))),
            x: x.shorter(),
            y: match &mut own {
                Some(own) => D::part_mut(own, 0..len),
                None => D::part_mut(&mut y, 0..len),
            },
            saved: D::part_mut(&mut saved, 0..self.saved),
            scratch: D::part_mut(&mut scratch, 0..self.scratch),
        };
        let is_added = plus.is_some();
        self.inner.walk(pass, inner, plus);
        match own {
            Some(own) => pass.device.add(D::read(&own), x.values(), y),
            None if is_added => {}
            None => pass.device.add_to(x.values(), y),
        }
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let Backward { params, frozen, x, y: _, saved, mut dy, mut dx, mut grads, scratch } = io;
        let grads_len = D::len_mut(&grads);
        let (device, len) = (pass.device, self.per_row * pass.rows);
        let (mut saved, own) = D::split_mut(saved, self.saved);
        let (mut scratch, mut copy) = D::split_mut(scratch, self.scratch);
        let needs = self.inner.needs();
        let y = match needs.output {
            true => device.activations(D::read(&own), len),
            false => D::part(D::read(&own), 0..0),
        };
        let spoils = needs.gradient != GradientUse::Reads;
        let copy = (spoils && dx.is_some()).then(|| {
            let mut copy = device.activations_mut(&mut copy, len);
            device.copy(D::read(&dy), D::part_mut(&mut copy, 0..len));
            copy
        });
        let outer = if dx.is_some() && self.inner.adds_back() { Outer::Added } else { Outer::Apart };
        let mut grads = Inside::<D>(D::part_mut(&mut grads, 0..grads_len));
        let mut params = Whole::<D>(params);
        let inner = Backward {
            params: &mut params as &mut dyn Parameters<D>,
            frozen: D::part(frozen, 0..D::len(frozen)),
            x: x.shorter(),
            y,
            saved: D::part_mut(&mut saved, 0..self.saved),
            dy: D::part_mut(&mut dy, 0..len),
            dx: dx.as_mut().map(|dx| D::part_mut(dx, 0..len)),
            grads: &mut grads as &mut dyn Gradients<D>,
            scratch: D::part_mut(&mut scratch, 0..self.scratch),
        };
        self.inner.walk_back(pass, inner, outer);
        let (Some(dx), Outer::Apart) = (dx, outer) else { return };
        device.add_to(copy.as_ref().map_or_else(|| D::read(&dy), |copy| D::read(copy)), dx);
    }
}
