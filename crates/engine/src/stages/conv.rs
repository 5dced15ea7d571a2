//! Convolutions over one, two or three dimensions, as PyTorch's: `x: [N, C, sides...]`, weights `[O, C, kernel...]`.
//!
//! This file does not know how a device computes them.

use super::by;
use crate::describe::{Behind, Description};
use crate::device::{Activation, Conv3dShape, Device, Operands};
use crate::param_layout::{Init, ParamLayout};
use crate::stage::{ArenaPlan, Backward, Forward, GradientUse, Needs, Pass, Shape, Stage};

/// A convolution over `N` dimensions, with a ReLU fused behind it if asked. See the file's comment.
#[derive(Clone, Debug)]
pub struct Conv<const N: usize> {
    /// With sides of 1 in front of the `N` that there are.
    shape: Conv3dShape,
    has_bias: bool,
    activation: Activation,
    /// What it does to gradients itself: what its activation does, or nothing where a stage behind it does that.
    undoes: Activation,
    /// What it does to the gradient of its input: what the stage in front of it would do to it, or nothing.
    undoes_in_front: Activation,
    /// How weights start, if not as PyTorch's layer has it.
    starts: Option<Init>,
    layout: ParamLayout,
}

/// A convolution over sequences `[channels, length]`.
pub type Conv1d = Conv<1>;
/// A convolution over images `[channels, height, width]`.
pub type Conv2d = Conv<2>;
/// A convolution over volumes, or over images in a row, `[channels, depth, height, width]`.
pub type Conv3d = Conv<3>;

/// The same number along each of the last `N` axes.
fn sides<const N: usize>(along: usize, missing: usize) -> [usize; 3] {
    [0, 1, 2].map(|d| if d + N < 3 { missing } else { along })
}

impl<const N: usize> Conv<N> {
    /// A convolution to this many channels with a kernel of equal sides, stride 1, no padding and a bias.
    #[must_use]
    pub fn new(outputs: usize, kernel: usize) -> Self {
        const { assert!(0 < N && N < 4, "images have one to three dimensions") };
        let shape = Conv3dShape {
            images: 0,
            channels: 0,
            size: [0; 3],
            outputs,
            kernel: sides::<N>(kernel, 1),
            stride: [1; 3],
            padding: [0; 3],
        };
        let none = Activation::None;
        Self {
            shape,
            has_bias: true,
            activation: none,
            undoes: none,
            undoes_in_front: none,
            starts: None,
            layout: ParamLayout::NOTHING,
        }
    }

    /// Puts this many zeros around the image.
    #[must_use]
    pub fn padding(mut self, padding: usize) -> Self {
        self.shape.padding = sides::<N>(padding, 0);
        self
    }

    /// Steps this far between windows.
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Self {
        self.shape.stride = sides::<N>(stride, 1);
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
        (self.activation, self.undoes) = (Activation::Relu, Activation::Relu);
        self
    }

    /// Starts weights in another way than PyTorch's uniform one.
    #[must_use]
    pub fn starting(mut self, weights: Init) -> Self {
        self.starts = Some(weights);
        self
    }

    fn weights(&self) -> usize {
        self.shape.outputs * self.shape.channels * self.shape.kernel.iter().product::<usize>()
    }

    fn of<D: Device>(&self, pass: &Pass<'_, D>) -> Conv3dShape {
        Conv3dShape { images: pass.rows, ..self.shape }
    }

    /// The scratch of a planned convolution.
    fn room<'a, D: Device>(
        pass: &Pass<'_, D>,
        shape: &Conv3dShape,
        scratch: &'a mut D::Mut<'_>,
    ) -> D::Mut<'a> {
        let needed = pass.device.conv_scratch(shape).expect("the plan asked the device");
        D::part_mut(scratch, 0..needed)
    }
}

impl<D: Device, const N: usize> Stage<D> for Conv<N> {
    fn kind(&self) -> &'static str {
        ["conv1d", "conv2d", "conv3d"][N - 1]
    }

    fn describe(&self) -> Description {
        let last = |along: [usize; 3]| along[3 - N..].to_vec();
        let Conv3dShape { channels, outputs, kernel, stride, padding, .. } = self.shape;
        let behind = if self.activation == Activation::Relu { Behind::Relu } else { Behind::Nothing };
        let (kernel, stride, padding) = (last(kernel), last(stride), last(padding));
        Description::Conv { channels, outputs, kernel, stride, padding, bias: self.has_bias, behind }
    }

    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn needs(&self) -> Needs {
        match self.undoes {
            Activation::None => Needs::PLAIN,
            Activation::Relu => Needs { output: true, gradient: GradientUse::Spoils, view: false },
        }
    }

    fn plan(&mut self, device: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        let (channels, size) = input.image_of(N)?;
        let Conv3dShape { outputs, kernel, stride, padding, .. } = self.shape;
        if outputs == 0 || kernel.contains(&0) || stride.contains(&0) {
            return Err("outputs, kernel and stride must be at least 1".into());
        }
        let given = |sides: [usize; 3]| sides[3 - N..].to_vec();
        if (0..3).any(|d| size[d] + 2 * padding[d] < kernel[d]) {
            let (kernel, size) = (given(kernel), by(&size[3 - N..]));
            return Err(format!("a kernel of {kernel:?} is larger than its input {size}"));
        }
        self.shape = Conv3dShape { images: input.rows(), channels, size, ..self.shape };
        let fan_in = channels * kernel.iter().product::<usize>();
        let init = Init::Uniform(1.0 / (fan_in as f32).sqrt());
        let weight = [vec![outputs, channels], given(kernel)].concat();
        self.layout = ParamLayout::NOTHING.with("weight", &weight, self.starts.unwrap_or(init));
        if self.has_bias {
            self.layout = std::mem::take(&mut self.layout).with("bias", &[outputs], init);
        }
        // A short micro-batch never needs more than a full one.
        space.scratch += device
            .conv_scratch(&self.shape)
            .ok_or("this device has no convolution over three dimensions; the CPU has")?;
        let output = [vec![outputs], given(self.shape.output_size())].concat();
        Ok(Shape::values(input.rows(), &output))
    }

    fn leaves_out_gradients(&self) -> bool {
        true
    }

    fn take_on_relu(&mut self, before: &mut dyn Stage<D>) -> bool {
        let is_left = before.leave_relu();
        if is_left {
            self.undoes_in_front = Activation::Relu;
        }
        is_left
    }

    fn leave_relu(&mut self) -> bool {
        self.undoes = Activation::None;
        self.activation == Activation::Relu
    }

    fn forward(&self, pass: &Pass<'_, D>, mut io: Forward<'_, D>) {
        let (shape, device) = (self.of(pass), pass.device);
        let (x, activation) = (io.x.values(), self.activation);
        let w = D::part(io.params, 0..self.weights());
        let bias = self.has_bias.then(|| D::part(io.params, self.weights()..self.weights() + shape.outputs));
        let scratch = Self::room(pass, &shape, &mut io.scratch);
        device.conv(&shape, Operands { x, w, bias }, activation, io.y, scratch);
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let Backward { params, x, y, mut dy, dx, grads, mut scratch, .. } = io;
        let (shape, device) = (self.of(pass), pass.device);
        if self.undoes == Activation::Relu {
            let len = D::len_mut(&dy);
            device.relu_gradient(y, D::part_mut(&mut dy, 0..len));
        }
        let (x, dy) = (x.values(), D::read(&dy));
        if D::len_mut(&grads) > 0 {
            let (dw, db) = D::split_mut(grads, self.weights());
            let db = self.has_bias.then_some(db);
            let room = Self::room(pass, &shape, &mut scratch);
            device.conv_weight_gradient(&shape, x, dy, dw, db, room);
        }
        let Some(dx) = dx else { return };
        let w = D::part(params, 0..self.weights());
        let room = Self::room(pass, &shape, &mut scratch);
        match self.undoes_in_front {
            Activation::None => device.conv_input_gradient(&shape, w, dy, dx, room),
            Activation::Relu => device.conv_input_gradient_of_relu(&shape, w, dy, x, dx, room),
        }
    }
}
