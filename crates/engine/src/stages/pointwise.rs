//! Stages without parameters that treat each element alone: ReLU, GELU, dropout; and flatten, which treats none.

use crate::describe::{Behind, Description};
use crate::device::{Device, Gelu};
use crate::stage::{ArenaPlan, Backward, Forward, GradientUse, Mode, Needs, Pass, Shape, Stage};
use dtrain_types::Site;

/// `max(x, 0)`. Behind a linear layer or a convolution their own `relu()` is faster.
#[derive(Clone, Copy, Debug, Default)]
pub struct Relu;

/// `1 / (1 + e^-x)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sigmoid;

/// The dimensions of a sample as one. It costs nothing between two stages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flatten;

/// Zeros each element with probability `rate` in training and scales the others by `1 / (1 - rate)`.
///
/// *Order*: what is dropped depends on the seed, step, micro-batch and the stage's place in the model alone.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    rate: f32,
    site: Site,
}

impl Dropout {
    /// Drops with this probability, in `[0, 1)`.
    #[must_use]
    pub fn new(rate: f32) -> Self {
        Self { rate, site: Site(0) }
    }
}

impl<D: Device> Stage<D> for Relu {
    fn kind(&self) -> &'static str {
        "relu"
    }

    fn describe(&self) -> Description {
        Description::Pointwise(Behind::Relu)
    }

    fn needs(&self) -> Needs {
        Needs { output: true, gradient: GradientUse::InPlace, view: false }
    }

    fn stacks(&self) -> bool {
        true
    }

    fn leave_relu(&mut self) -> bool {
        true
    }

    fn decodes(&self) -> bool {
        true
    }

    fn plan(&mut self, _: &D, input: &Shape, _: &mut ArenaPlan) -> Result<Shape, String> {
        input.dims()?;
        Ok(input.clone())
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        pass.device.relu(io.x.values(), io.y);
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        pass.device.relu_gradient(io.y, io.dy);
    }
}

impl<D: Device> Stage<D> for Sigmoid {
    fn kind(&self) -> &'static str {
        "sigmoid"
    }

    fn needs(&self) -> Needs {
        Needs { output: true, gradient: GradientUse::InPlace, view: false }
    }

    fn stacks(&self) -> bool {
        true
    }

    fn decodes(&self) -> bool {
        true
    }

    fn plan(&mut self, _: &D, input: &Shape, _: &mut ArenaPlan) -> Result<Shape, String> {
        input.dims()?;
        Ok(input.clone())
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        pass.device.sigmoid(io.x.values(), io.y);
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        pass.device.sigmoid_gradient(io.y, io.dy);
    }
}

impl<D: Device> Stage<D> for Gelu {
    fn kind(&self) -> &'static str {
        match self {
            Self::Exact => "gelu",
            Self::Tanh => "gelu_tanh",
        }
    }

    fn describe(&self) -> Description {
        Description::Pointwise(Behind::Gelu(*self))
    }

    fn needs(&self) -> Needs {
        Needs { output: false, gradient: GradientUse::InPlace, view: false }
    }

    fn stacks(&self) -> bool {
        true
    }

    fn decodes(&self) -> bool {
        true
    }

    fn plan(&mut self, _: &D, input: &Shape, _: &mut ArenaPlan) -> Result<Shape, String> {
        input.dims()?;
        Ok(input.clone())
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        pass.device.gelu(*self, io.x.values(), io.y);
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        pass.device.gelu_gradient(*self, io.x.values(), io.dy);
    }
}

impl<D: Device> Stage<D> for Flatten {
    fn kind(&self) -> &'static str {
        "flatten"
    }

    fn describe(&self) -> Description {
        Description::Flatten
    }

    fn needs(&self) -> Needs {
        Needs { output: false, gradient: GradientUse::InPlace, view: true }
    }

    fn stacks(&self) -> bool {
        true
    }

    fn plan(&mut self, _: &D, input: &Shape, _: &mut ArenaPlan) -> Result<Shape, String> {
        input.dims()?;
        Ok(Shape::values(input.rows(), &[input.per_row()]))
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        // Only where it is the last of its chain, so that nobody else can read through it.
        pass.device.copy(io.x.values(), io.y);
    }

    fn backward(&self, _: &Pass<'_, D>, _: Backward<'_, D>) {}
}

impl<D: Device> Stage<D> for Dropout {
    fn kind(&self) -> &'static str {
        "dropout"
    }

    fn describe(&self) -> Description {
        Description::Dropout { rate: self.rate }
    }

    fn needs(&self) -> Needs {
        Needs::PLAIN
    }

    fn decodes(&self) -> bool {
        true
    }

    fn plan(&mut self, _: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        input.dims()?;
        if !(0.0..1.0).contains(&self.rate) {
            return Err(format!("the rate of dropout must be at least 0 and below 1, got {}", self.rate));
        }
        self.site = space.site();
        Ok(input.clone())
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        match pass.mode {
            Mode::Train => pass.device.dropout(pass.key(self.site), self.rate, io.x.values(), io.y),
            Mode::Evaluate => pass.device.copy(io.x.values(), io.y),
        }
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        if let Some(dx) = io.dx {
            pass.device.dropout(pass.key(self.site), self.rate, D::read(&io.dy), dx);
        }
    }
}
