//! A linear layer on the last dimension, as PyTorch's: `y = x w^T + b`, weights `[out, in]`.
//!
//! Shapes: R rows (samples times leading dimensions), I inputs, O outputs.

use crate::describe::{self, Description};
use crate::device::{Activation, Device, Gelu, Leaf, LinearShape, Operands, Product, Rows, Strides, Write};
use crate::stage::{ArenaPlan, Backward, Forward, GradientUse, Init, Needs, ParamLayout, Pass, Shape, Stage};

/// What is fused behind a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Nothing,
    Relu,
    /// What goes into it is kept for the backward pass.
    Gelu(Gelu),
}

/// A linear layer, with a ReLU or a GELU fused behind it if asked. See the file's comment.
#[derive(Clone, Debug)]
pub struct Linear {
    outputs: usize,
    inputs: usize,
    has_bias: bool,
    behind: Behind,
    /// How weights and bias start, if not as in PyTorch.
    starts: Option<[Init; 2]>,
    layout: ParamLayout,
}

impl Linear {
    /// A layer with this many outputs and a bias.
    #[must_use]
    pub fn new(outputs: usize) -> Self {
        Self {
            outputs,
            inputs: 0,
            has_bias: true,
            behind: Behind::Nothing,
            starts: None,
            layout: ParamLayout::NOTHING,
        }
    }

    /// Leaves out the bias.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        self.has_bias = false;
        self
    }

    /// Puts `max(y, 0)` behind it, in the same pass over memory.
    #[must_use]
    pub fn relu(mut self) -> Self {
        self.behind = Behind::Relu;
        self
    }

    /// Puts a GELU behind it: where the device has it, in the same pass over memory.
    #[must_use]
    pub fn gelu(mut self, form: Gelu) -> Self {
        self.behind = Behind::Gelu(form);
        self
    }

    /// Starts weights and bias in another way than PyTorch's uniform one.
    #[must_use]
    pub fn starting(mut self, weights: Init, bias: Init) -> Self {
        self.starts = Some([weights, bias]);
        self
    }

    fn weights(&self) -> usize {
        self.inputs * self.outputs
    }
}

impl<D: Device> Stage<D> for Linear {
    fn kind(&self) -> &'static str {
        "linear"
    }

    fn describe(&self) -> Description {
        let Self { inputs, outputs, has_bias: bias, behind, .. } = *self;
        let behind = match behind {
            Behind::Nothing => describe::Behind::Nothing,
            Behind::Relu => describe::Behind::Relu,
            Behind::Gelu(form) => describe::Behind::Gelu(form),
        };
        Description::Linear { inputs, outputs, bias, behind }
    }

    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn needs(&self) -> Needs {
        match self.behind {
            Behind::Nothing => Needs::PLAIN,
            Behind::Relu => Needs { output: true, gradient: GradientUse::Spoils, view: false },
            Behind::Gelu(_) => Needs { output: false, gradient: GradientUse::Spoils, view: false },
        }
    }

    fn stacks(&self) -> bool {
        true
    }

    fn plan(&mut self, _: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        if self.outputs == 0 {
            return Err("it has no output".into());
        }
        self.inputs = input.width()?;
        let init = Init::Uniform(1.0 / (self.inputs as f32).sqrt());
        let [weights, bias] = self.starts.unwrap_or([init; 2]);
        self.layout = ParamLayout::NOTHING.with("weight", &[self.outputs, self.inputs], weights);
        if self.has_bias {
            self.layout = std::mem::take(&mut self.layout).with("bias", &[self.outputs], bias);
        }
        let mut dims = input.dims()?.to_vec();
        *dims.last_mut().expect("a width was found") = self.outputs;
        let output = Shape::Values { rows: input.rows(), dims };
        if let Behind::Gelu(_) = self.behind {
            space.saved += output.rows() * output.per_row();
        }
        Ok(output)
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let x_ri = io.x.values();
        let shape = Rows { rows: D::len(x_ri) / self.inputs, width: self.outputs };
        let w_oi = D::part(io.params, 0..self.weights());
        let bias_o = self.has_bias.then(|| D::part(io.params, self.weights()..self.weights() + self.outputs));
        let (device, inputs, mut saved) = (pass.device, self.inputs, io.saved);
        match self.behind {
            Behind::Nothing => device.linear(
                LinearShape::new(shape, inputs),
                Operands { x: x_ri, w: w_oi, bias: bias_o },
                Activation::None,
                io.y,
            ),
            Behind::Relu => device.linear(
                LinearShape::new(shape, inputs),
                Operands { x: x_ri, w: w_oi, bias: bias_o },
                Activation::Relu,
                io.y,
            ),
            Behind::Gelu(form) => {
                let z_ro = D::part_mut(&mut saved, 0..shape.rows * shape.width);
                device.linear_gelu(
                    LinearShape::new(shape, inputs),
                    Operands { x: x_ri, w: w_oi, bias: bias_o },
                    form,
                    z_ro,
                    io.y,
                );
            }
        }
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let Backward { params, x, y, saved, mut dy, dx, mut grads, .. } = io;
        let x_ri = x.values();
        let (inputs, outputs) = (self.inputs, self.outputs);
        let rows = D::len(x_ri) / inputs;
        // Rows of a micro-batch: samples times leading dimensions.
        let leaf = Leaf { terms: pass.each * (rows / pass.rows), wire: pass.wire };
        let len = D::len_mut(&dy);
        match self.behind {
            Behind::Nothing => {}
            Behind::Relu => pass.device.relu_gradient(y, D::part_mut(&mut dy, 0..len)),
            Behind::Gelu(form) => {
                let z_ro = D::part(D::read(&saved), 0..len);
                pass.device.gelu_gradient(form, z_ro, D::part_mut(&mut dy, 0..len));
            }
        }
        let dy_ro = D::read(&dy);
        if self.has_bias {
            let sums = D::part_mut(&mut grads, self.weights()..self.weights() + outputs);
            pass.device.column_sums_of_leaves(Rows { rows, width: outputs }, leaf, dy_ro, sums);
        }
        // dw[O, I] = dy^T x
        let weights = Product {
            m: outputs,
            n: inputs,
            k: rows,
            a: Strides::transposed(outputs),
            b: Strides::rows(inputs),
            c_row: inputs,
            write: Write::Set,
        };
        let dw_oi = D::part_mut(&mut grads, 0..self.weights());
        pass.device.product_of_leaves(&weights, leaf, dy_ro, x_ri, dw_oi);
        if let Some(dx) = dx {
            // dx[R, I] = dy w
            let (a, b) = (Strides::rows(outputs), Strides::rows(inputs));
            let product = Product { m: rows, n: inputs, k: outputs, a, b, c_row: inputs, write: Write::Set };
            pass.device.product(&product, dy_ro, D::part(params, 0..self.weights()), dx);
        }
    }
}
