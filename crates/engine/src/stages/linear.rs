//! A linear layer on the last dimension, as PyTorch's: `y = x w^T + b`, weights `[out, in]`.
//!
//! Shapes: R rows (samples times leading dimensions), I inputs, O outputs.

use crate::describe::{self, Description};
use crate::device::{
    Activation, Curve, Device, Gelu, Leaf, LinearShape, Operands, Product, Rows, Strides, Write, reborrow,
};
use crate::param_layout::{Init, ParamLayout};
use crate::stage::{ArenaPlan, Backward, Forward, GradientUse, Needs, Pass, Shape, Stage};

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
    /// The layers that it is side by side; none where it is one.
    parts: Vec<(&'static str, usize)>,
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
            parts: Vec::new(),
            starts: None,
            layout: ParamLayout::NOTHING,
        }
    }

    /// Layers of the same input side by side, each with the outputs that its name says: one product. Their tensors are `NAME.weight` and
    /// `NAME.bias`.
    #[must_use]
    pub fn side_by_side(parts: &[(&'static str, usize)]) -> Self {
        let outputs = parts.iter().map(|(_, outputs)| outputs).sum();
        Self { parts: parts.to_vec(), ..Self::new(outputs) }
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

    /// The layers that it is side by side, each with its outputs; one without a name where it is one.
    pub(super) fn parts(&self) -> Vec<(&'static str, usize)> {
        if self.parts.is_empty() { vec![("", self.outputs)] } else { self.parts.clone() }
    }

    /// Whether no activation is fused behind it.
    pub(super) fn is_plain(&self) -> bool {
        self.behind == Behind::Nothing
    }

    fn weights(&self) -> usize {
        self.inputs * self.outputs
    }

    fn shape<D: Device>(&self, x: D::Ref<'_>) -> LinearShape {
        LinearShape { rows: D::len(x) / self.inputs, inputs: self.inputs, outputs: self.outputs }
    }

    fn operands<'b, 'a: 'b, D: Device>(&self, x: D::Ref<'a>, params: D::Ref<'a>) -> Operands<D::Ref<'b>> {
        let bias = self.weights()..self.weights() + self.outputs;
        Operands {
            x: reborrow::<D>(x),
            w: D::part(params, 0..self.weights()),
            bias: self.has_bias.then(|| D::part(params, bias)),
        }
    }
}

impl<D: Device> Stage<D> for Linear {
    fn kind(&self) -> &'static str {
        "linear"
    }

    fn describe(&self) -> Description {
        let Self { inputs, outputs, has_bias: bias, behind, ref parts, .. } = *self;
        let behind = match behind {
            Behind::Nothing => describe::Behind::Nothing,
            Behind::Relu => describe::Behind::Relu,
            Behind::Gelu(form) => describe::Behind::Gelu(form),
        };
        Description::Linear { inputs, outputs, bias, parts: parts.clone(), behind }
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

    fn leaves_out_gradients(&self) -> bool {
        true
    }

    fn decodes(&self) -> bool {
        true
    }

    fn plan(&mut self, device: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        if self.outputs == 0 {
            return Err("it has no output".into());
        }
        self.inputs = input.width()?;
        let init = Init::Uniform(1.0 / (self.inputs as f32).sqrt());
        let [weights, bias] = self.starts.unwrap_or([init; 2]);
        let parts = self.parts();
        let called = |part: &str, tensor: &str| match part {
            "" => tensor.to_owned(),
            _ => format!("{part}.{tensor}"),
        };
        self.layout = parts.iter().fold(ParamLayout::NOTHING, |layout, (part, outputs)| {
            layout.with(&called(part, "weight"), &[*outputs, self.inputs], weights)
        });
        if self.has_bias {
            self.layout = parts.iter().fold(std::mem::take(&mut self.layout), |layout, (part, outputs)| {
                layout.with(&called(part, "bias"), &[*outputs], bias)
            });
        }
        let mut dims = input.dims()?.to_vec();
        *dims.last_mut().expect("a width was found") = self.outputs;
        let output = Shape::Values { rows: input.rows(), dims };
        if let Behind::Gelu(_) = self.behind {
            space.saved += device.activation_len(output.rows() * output.per_row());
        }
        Ok(output)
    }

    fn pads(&self) -> bool {
        self.behind == Behind::Nothing
    }

    fn adds(&self) -> bool {
        self.behind == Behind::Nothing
    }

    fn forward_plus(&self, pass: &Pass<'_, D>, io: Forward<'_, D>, plus: D::Ref<'_>) {
        let x = io.x.values();
        pass.device.linear_plus(self.shape::<D>(x), self.operands::<D>(x, io.params), plus, io.y);
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let (x, device, mut saved) = (io.x.values(), pass.device, io.saved);
        let shape = self.shape::<D>(x);
        let operands = self.operands::<D>(x, io.params);
        match self.behind {
            Behind::Nothing => device.linear(shape, operands, Activation::None, io.y),
            Behind::Relu => device.linear(shape, operands, Activation::Relu, io.y),
            Behind::Gelu(form) => {
                let z = device.activations_mut(&mut saved, shape.rows * shape.outputs);
                device.linear_gelu(shape, operands, form, z, io.y);
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
        let (curve, kept) = match self.behind {
            Behind::Nothing => (None, None),
            Behind::Relu => (Some(Curve::Relu), Some(reborrow::<D>(y))),
            Behind::Gelu(form) => {
                (Some(Curve::Gelu(form)), Some(pass.device.activations(D::read(&saved), len)))
            }
        };
        let shape = Rows { rows, width: outputs };
        // Rows may lie further apart than they are long, see `pads`.
        let pitch = len.checked_div(rows).unwrap_or(outputs);
        let is_trained = D::len_mut(&grads) > 0;
        let sums = (self.has_bias && is_trained)
            .then(|| D::part_mut(&mut grads, self.weights()..self.weights() + outputs));
        match (curve.zip(kept), sums) {
            (None, None) => {}
            (None, Some(sums)) => pass.device.column_sums_of_leaves(shape, leaf, D::read(&dy), sums),
            (Some((curve, kept)), None) => {
                pass.device.curve_gradient(curve, kept, D::part_mut(&mut dy, 0..len));
            }
            (Some((curve, kept)), Some(sums)) => {
                let d = D::part_mut(&mut dy, 0..len);
                pass.device.curve_gradient_and_sums(shape, leaf, curve, kept, d, sums);
            }
        }
        let dy_ro = D::read(&dy);
        // dw[O, I] = dy^T x
        let weights = Product {
            m: outputs,
            n: inputs,
            k: rows,
            a: Strides::transposed(pitch),
            b: Strides::rows(inputs),
            c_row: inputs,
            write: Write::Set,
        };
        if is_trained {
            let dw_oi = D::part_mut(&mut grads, 0..self.weights());
            pass.device.product_of_leaves(&weights, leaf, dy_ro, x_ri, dw_oi);
        }
        if let Some(dx) = dx {
            // dx[R, I] = dy w
            let (a, b) = (Strides::rows(pitch), Strides::rows(inputs));
            let product = Product { m: rows, n: inputs, k: outputs, a, b, c_row: inputs, write: Write::Set };
            pass.device.product(&product, dy_ro, D::part(params, 0..self.weights()), dx);
        }
    }
}
