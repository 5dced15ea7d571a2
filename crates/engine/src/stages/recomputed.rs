//! A block that keeps nothing for the backward pass but computes its forward pass once more there: less memory for more time,
//! and the same bits.
//!
//! It does not know what is inside, nor who decided that memory is short.

use crate::describe::Description;
use crate::device::Device;
use crate::param_layout::ParamLayout;
use crate::stage::{ArenaPlan, Backward, Forward, Needs, Pass, Shape, Stage};

/// A stage whose forward pass is made twice. See the file's comment.
///
/// One with running statistics is left as it is: its second pass would need them as they were in the first.
pub(crate) struct Recomputed<D: Device> {
    inner: Box<dyn Stage<D>>,
    /// What the inner stage saves, uses of scratch, and gives: elements of the greatest pass. None where it is left as it is.
    own: Option<Lengths>,
}

/// How the scratch memory is cut.
#[derive(Clone, Copy)]
struct Lengths {
    saved: usize,
    scratch: usize,
    /// Elements per sample of the output.
    per_row: usize,
}

impl<D: Device> Recomputed<D> {
    pub(crate) fn new(inner: Box<dyn Stage<D>>) -> Self {
        Self { inner, own: None }
    }
}

impl<D: Device> Stage<D> for Recomputed<D> {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn describe(&self) -> Description {
        self.inner.describe()
    }

    fn layout(&self) -> &ParamLayout {
        self.inner.layout()
    }

    fn needs(&self) -> Needs {
        self.inner.needs()
    }

    fn stacks(&self) -> bool {
        self.inner.stacks()
    }

    fn leaves_out_gradients(&self) -> bool {
        self.inner.leaves_out_gradients()
    }

    fn freeze(&mut self, prefix: &str, named: &dyn Fn(&str) -> bool) {
        self.inner.freeze(prefix, named);
    }

    fn vocabulary(&self) -> Option<usize> {
        self.inner.vocabulary()
    }

    fn plan(&mut self, device: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        let mut own = space.inner();
        let output = self.inner.plan(device, input, &mut own)?;
        space.absorb(&own);
        if !self.inner.layout().stats.is_empty() {
            space.saved += own.saved;
            space.scratch += own.scratch;
            return Ok(output);
        }
        let lengths = Lengths { saved: own.saved, scratch: own.scratch, per_row: output.per_row() };
        space.scratch += own.saved + own.scratch + device.activation_len(output.rows() * output.per_row());
        self.own = Some(lengths);
        Ok(output)
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let Some(own) = self.own else { return self.inner.forward(pass, io) };
        let (saved, rest) = D::split_mut(io.scratch, own.saved);
        let (scratch, _) = D::split_mut(rest, own.scratch);
        self.inner.forward(pass, Forward { saved, scratch, ..io });
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let Some(own) = self.own else { return self.inner.backward(pass, io) };
        let (mut saved, rest) = D::split_mut(io.scratch, own.saved);
        let (mut scratch, mut output) = D::split_mut(rest, own.scratch);
        self.inner.forward(
            pass,
            Forward {
                params: D::part(io.params, 0..D::len(io.params)),
                frozen: D::part(io.frozen, 0..D::len(io.frozen)),
                stats: D::part(io.params, 0..0),
                stat_sums: None,
                x: io.x.shorter(),
                y: pass.device.activations_mut(&mut output, own.per_row * pass.rows),
                saved: D::part_mut(&mut saved, 0..own.saved),
                scratch: D::part_mut(&mut scratch, 0..own.scratch),
            },
        );
        self.inner.backward(pass, Backward { saved, scratch, ..io });
    }
}
