//! A two-dimensional convolution, as PyTorch's: `x: [N, C, H, W]`, weights `[O, C, KH, KW]`.

use crate::device::{Activation, Conv2d as ConvShape, Device};
use crate::stage::{ArenaPlan, Backward, Forward, GradientUse, Init, Needs, ParamLayout, Pass, Shape, Stage};

/// A convolution, with a ReLU fused behind it if asked. See the file's comment.
#[derive(Clone, Debug)]
pub struct Conv2d {
    shape: ConvShape,
    has_bias: bool,
    activation: Activation,
    layout: ParamLayout,
    scratch: usize,
}

impl Conv2d {
    /// A convolution to this many channels with a square kernel, stride 1, no padding and a bias.
    #[must_use]
    pub fn new(outputs: usize, kernel: usize) -> Self {
        let shape = ConvShape {
            images: 0,
            channels: 0,
            size: [0, 0],
            outputs,
            kernel: [kernel, kernel],
            stride: [1, 1],
            padding: [0, 0],
        };
        let layout = ParamLayout::NOTHING;
        Self { shape, has_bias: true, activation: Activation::None, layout, scratch: 0 }
    }

    /// Puts this many zeros around the image.
    #[must_use]
    pub fn padding(mut self, padding: usize) -> Self {
        self.shape.padding = [padding, padding];
        self
    }

    /// Steps this far between windows.
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Self {
        self.shape.stride = [stride, stride];
        self
    }

    /// Leaves out the bias: it would change nothing in front of a batch norm.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        self.has_bias = false;
        self
    }

    /// Puts `max(y, 0)` behind it, in the same pass over memory.
    #[must_use]
    pub fn relu(mut self) -> Self {
        self.activation = Activation::Relu;
        self
    }

    fn weights(&self) -> usize {
        self.shape.outputs * self.shape.channels * self.shape.kernel[0] * self.shape.kernel[1]
    }

    fn of<D: Device>(&self, pass: &Pass<'_, D>) -> ConvShape {
        ConvShape { images: pass.rows, ..self.shape }
    }
}

impl<D: Device> Stage<D> for Conv2d {
    fn kind(&self) -> &'static str {
        "conv2d"
    }

    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn needs(&self) -> Needs {
        match self.activation {
            Activation::None => Needs::PLAIN,
            Activation::Relu => Needs { output: true, gradient: GradientUse::Spoils, view: false },
        }
    }

    fn plan(&mut self, device: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        let [channels, height, width] = input.image()?;
        let ConvShape { outputs, kernel, stride, padding, .. } = self.shape;
        if outputs == 0 || kernel.contains(&0) || stride.contains(&0) {
            return Err("outputs, kernel and stride must be at least 1".into());
        }
        if (0..2).any(|d| [height, width][d] + 2 * padding[d] < kernel[d]) {
            return Err(format!("a kernel of {kernel:?} is larger than its input {height} x {width}"));
        }
        self.shape = ConvShape { images: input.rows(), channels, size: [height, width], ..self.shape };
        let fan_in = channels * kernel[0] * kernel[1];
        let init = Init::Uniform(1.0 / (fan_in as f32).sqrt());
        let weight = [outputs, channels, kernel[0], kernel[1]];
        self.layout = ParamLayout::NOTHING.with("weight", &weight, init);
        if self.has_bias {
            self.layout = std::mem::take(&mut self.layout).with("bias", &[outputs], init);
        }
        // A short micro-batch never needs more than a full one.
        self.scratch = device.conv2d_scratch(&self.shape);
        space.scratch += self.scratch;
        let [h, w] = self.shape.output_size();
        Ok(Shape::values(input.rows(), &[outputs, h, w]))
    }

    fn forward(&self, pass: &Pass<'_, D>, mut io: Forward<'_, D>) {
        let shape = self.of(pass);
        let w = D::part(io.params, 0..self.weights());
        let bias = self.has_bias.then(|| D::part(io.params, self.weights()..self.weights() + shape.outputs));
        let scratch = D::part_mut(&mut io.scratch, 0..pass.device.conv2d_scratch(&shape));
        pass.device.conv2d(&shape, io.x.values(), w, bias, self.activation, io.y, scratch);
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let Backward { params, x, y, mut dy, dx, grads, mut scratch, .. } = io;
        let (shape, device) = (self.of(pass), pass.device);
        let needed = device.conv2d_scratch(&shape);
        if self.activation == Activation::Relu {
            let len = D::len_mut(&dy);
            device.relu_gradient(y, D::part_mut(&mut dy, 0..len));
        }
        let dy = D::read(&dy);
        let (dw, db) = D::split_mut(grads, self.weights());
        let db = self.has_bias.then_some(db);
        device.conv2d_weight_gradient(&shape, x.values(), dy, dw, db, D::part_mut(&mut scratch, 0..needed));
        if let Some(dx) = dx {
            let w = D::part(params, 0..self.weights());
            device.conv2d_input_gradient(&shape, w, dy, dx, D::part_mut(&mut scratch, 0..needed));
        }
    }
}
