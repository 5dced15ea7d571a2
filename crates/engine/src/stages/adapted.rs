//! A linear layer with adapters of low rank beside it: `y = x w^T + bias + s (x a^T) b^T`, of which `a` and `b` are trained, and `w` stays as it is.
//!
//! Where the layer is several side by side, each may have an adapter of its own: what goes in is brought to a few numbers for all of them in one
//! product. `s` is taken into what is kept, so that the gradients of `a` and `b` have it as well.
//!
//! Shapes: R rows (samples times leading dimensions), I inputs, O outputs, N the ranks of all adapters together.
//!
//! *Source*: Hu et al., "LoRA", 2021; names and first values of Hugging Face's PEFT.

use super::Linear;
use crate::describe::Description;
use crate::device::{Device, Leaf, Product, Strides, Write};
use crate::param_layout::{Init, ParamLayout};
use crate::stage::{ArenaPlan, Backward, Forward, Needs, Pass, Shape, Stage};
use std::ops::Range;

/// What adapters are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowRank {
    /// The numbers between `a` and `b`.
    pub rank: usize,
    /// What an adapter's output is multiplied by: PEFT's `lora_alpha / r`.
    pub scale: f32,
}

/// An adapter and its place.
#[derive(Clone, Debug)]
struct Adapter {
    /// The layer that it is for; empty where that is one alone.
    name: &'static str,
    /// The outputs of that.
    outputs: Range<usize>,
    /// Outputs of the adapters in front of it.
    before: usize,
}

/// A linear layer with adapters. See the file's comment.
#[derive(Clone, Debug)]
pub struct Adapted {
    base: Linear,
    low: LowRank,
    adapters: Vec<Adapter>,
    /// Elements of a row that goes in, and of one that comes out.
    sides: [usize; 2],
    /// The layer's own parameters, among all where they do not lie apart.
    own: usize,
    is_frozen: bool,
    layout: ParamLayout,
}

impl Adapted {
    /// Puts adapters beside a layer without activation, or beside those side by side of these names. *Panics* if it has no layer of such a name, or an activation.
    #[must_use]
    pub fn new(base: Linear, low: LowRank, names: &[&'static str]) -> Self {
        let parts = base.parts();
        assert!(base.is_plain(), "an adapter is added before an activation");
        let (mut at, mut adapted, mut adapters) = (0, 0, Vec::new());
        for (name, outputs) in &parts {
            if names.contains(name) {
                adapters.push(Adapter { name, outputs: at..at + outputs, before: adapted });
                adapted += outputs;
            }
            at += outputs;
        }
        assert_eq!(adapters.len(), names.len(), "{names:?} of {parts:?}");
        Self { base, low, adapters, sides: [0; 2], own: 0, is_frozen: false, layout: ParamLayout::NOTHING }
    }

    /// The numbers between `a` and `b`, of all adapters.
    fn between(&self) -> usize {
        self.adapters.len() * self.low.rank
    }

    /// All `a`, among the parameters that are trained.
    fn all_a(&self) -> Range<usize> {
        let first = if self.is_frozen { 0 } else { self.own };
        first..first + self.between() * self.sides[0]
    }

    /// The `b` of an adapter there.
    fn b_of(&self, adapter: &Adapter) -> Range<usize> {
        let first = self.all_a().end + adapter.before * self.low.rank;
        first..first + adapter.outputs.len() * self.low.rank
    }

    /// The tensors of the adapters behind those of the layer.
    fn lay_out(&mut self, base: ParamLayout) {
        let (rank, [inputs, _]) = (self.low.rank, self.sides);
        let called = |adapter: &Adapter, tensor: &str| match adapter.name {
            "" => format!("{tensor}.weight"),
            name => format!("{name}.{tensor}.weight"),
        };
        // As PyTorch starts a linear layer; and nothing is added at first.
        let a = Init::Uniform(1.0 / (inputs as f32).sqrt());
        let layout = self
            .adapters
            .iter()
            .fold(base, |layout, adapter| layout.with(&called(adapter, "lora_A"), &[rank, inputs], a));
        self.layout = self.adapters.iter().fold(layout, |layout, adapter| {
            layout.with(&called(adapter, "lora_B"), &[adapter.outputs.len(), rank], Init::Constant(0.0))
        });
    }

    /// The layer's own parameters.
    fn own<'b, 'a: 'b, D: Device>(&self, params: D::Ref<'a>, frozen: D::Ref<'a>) -> D::Ref<'b> {
        D::part(if self.is_frozen { frozen } else { params }, 0..self.own)
    }

    /// The forward pass, with something added to the output.
    fn walk<D: Device>(&self, pass: &Pass<'_, D>, io: Forward<'_, D>, plus: Option<D::Ref<'_>>) {
        let Forward { params, frozen, stats, stat_sums: _, x, mut y, mut saved, mut scratch } = io;
        let len = D::len_mut(&y);
        let base = Forward {
            params: self.own::<D>(params, frozen),
            frozen: D::part(frozen, 0..0),
            stats: D::part(stats, 0..0),
            stat_sums: None,
            x: x.shorter(),
            y: D::part_mut(&mut y, 0..len),
            saved: D::part_mut(&mut saved, 0..0),
            scratch: D::part_mut(&mut scratch, 0..0),
        };
        match plus {
            None => self.base.forward(pass, base),
            Some(plus) => self.base.forward_plus(pass, base, plus),
        }
        self.add(pass, params, x.values(), &mut y, [&mut saved, &mut scratch]);
    }

    /// Adds to `y` what the adapters say.
    fn add<D: Device>(
        &self,
        pass: &Pass<'_, D>,
        params: D::Ref<'_>,
        x: D::Ref<'_>,
        y: &mut D::Mut<'_>,
        [saved, scratch]: [&mut D::Mut<'_>; 2],
    ) {
        let (device, [inputs, outputs], between) = (pass.device, self.sides, self.between());
        let rows = D::len(x) / inputs;
        let mut plain = device.activations_mut(scratch, rows * between);
        let mut kept = device.activations_mut(saved, rows * between);
        // h[R, N] = x a^T
        let product = Product {
            m: rows,
            n: between,
            k: inputs,
            a: Strides::rows(inputs),
            b: Strides::transposed(inputs),
            c_row: between,
            write: Write::Set,
        };
        device.product(
            &product,
            x,
            D::part(params, self.all_a()),
            D::part_mut(&mut plain, 0..rows * between),
        );
        device.combine([self.low.scale, 0.0], D::read(&plain), D::part_mut(&mut kept, 0..rows * between));
        let len = D::len_mut(y);
        for (at, adapter) in self.adapters.iter().enumerate() {
            // y[R, O] += h b^T
            let product = Product {
                m: rows,
                n: adapter.outputs.len(),
                k: self.low.rank,
                a: Strides::rows(between),
                b: Strides::transposed(self.low.rank),
                c_row: outputs,
                write: Write::Add,
            };
            let h = D::part(D::read(&kept), at * self.low.rank..rows * between);
            device.product(
                &product,
                h,
                D::part(params, self.b_of(adapter)),
                D::part_mut(y, adapter.outputs.start..len),
            );
        }
    }
}

impl<D: Device> Stage<D> for Adapted {
    fn kind(&self) -> &'static str {
        "adapted"
    }

    /// The layer with its adapters taken into it.
    fn describe(&self) -> Description {
        Stage::<D>::describe(&self.base)
    }

    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn needs(&self) -> Needs {
        Needs::PLAIN
    }

    fn stacks(&self) -> bool {
        true
    }

    fn decodes(&self) -> bool {
        true
    }

    fn plan(&mut self, device: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        let output = Stage::<D>::plan(&mut self.base, device, input, space)?;
        self.sides = [input.width()?, output.width()?];
        let base = Stage::<D>::layout(&self.base).clone();
        self.own = base.parameters_len();
        self.lay_out(base);
        let rows = input.rows() * input.per_row() / self.sides[0];
        let between = device.activation_len(rows * self.between());
        space.saved += between;
        space.scratch += 2 * between;
        Ok(output)
    }

    fn freeze(&mut self, before: &str, named: &dyn Fn(&str) -> bool) {
        let base = Stage::<D>::layout(&self.base).clone();
        self.is_frozen = base.parameters.iter().all(|tensor| named(&format!("{before}{}", tensor.name)));
        self.lay_out(if self.is_frozen { base.all_frozen() } else { base });
    }

    fn adds(&self) -> bool {
        true
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        self.walk(pass, io, None);
    }

    fn forward_plus(&self, pass: &Pass<'_, D>, io: Forward<'_, D>, plus: D::Ref<'_>) {
        self.walk(pass, io, Some(plus));
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let Backward { params, frozen, x, y, mut saved, mut dy, mut dx, mut grads, mut scratch } = io;
        let (device, [inputs, outputs], between) = (pass.device, self.sides, self.between());
        let (rank, x_ri) = (self.low.rank, x.values());
        let rows = D::len(x_ri) / inputs;
        let leaf = Leaf { terms: pass.each * (rows / pass.rows), wire: pass.wire };
        let len = rows * outputs;
        let own = if self.is_frozen { 0 } else { self.own };
        self.base.backward(
            pass,
            Backward {
                params: self.own::<D>(params, frozen),
                frozen: D::part(frozen, 0..0),
                x: x.shorter(),
                y: D::part(y, 0..0),
                saved: D::part_mut(&mut saved, 0..0),
                dy: D::part_mut(&mut dy, 0..len),
                dx: dx.as_mut().map(|dx| D::part_mut(dx, 0..rows * inputs)),
                grads: D::part_mut(&mut grads, 0..own),
                scratch: D::part_mut(&mut scratch, 0..0),
            },
        );
        let memory = device.activation_len(rows * between);
        let (mut plain, mut scaled) = D::split_mut(D::part_mut(&mut scratch, 0..2 * memory), memory);
        let mut plain = device.activations_mut(&mut plain, rows * between);
        let mut scaled = device.activations_mut(&mut scaled, rows * between);
        let (dy, kept) = (D::read(&dy), device.activations(D::read(&saved), rows * between));
        for (at, adapter) in self.adapters.iter().enumerate() {
            let b = self.b_of(adapter);
            let dy = D::part(dy, adapter.outputs.start..len);
            // db[O, n] = dy^T h
            let product = Product {
                m: adapter.outputs.len(),
                n: rank,
                k: rows,
                a: Strides::transposed(outputs),
                b: Strides::rows(between),
                c_row: rank,
                write: Write::Set,
            };
            let h = D::part(kept, at * rank..rows * between);
            device.product_of_leaves(&product, leaf, dy, h, D::part_mut(&mut grads, b.clone()));
            // dh[R, n] = dy b
            let product = Product {
                m: rows,
                n: rank,
                k: adapter.outputs.len(),
                a: Strides::rows(outputs),
                b: Strides::rows(rank),
                c_row: between,
                write: Write::Set,
            };
            let dh = D::part_mut(&mut plain, at * rank..rows * between);
            device.product(&product, dy, D::part(params, b), dh);
        }
        device.combine([self.low.scale, 0.0], D::read(&plain), D::part_mut(&mut scaled, 0..rows * between));
        // da[N, I] = dh^T x
        let product = Product {
            m: between,
            n: inputs,
            k: rows,
            a: Strides::transposed(between),
            b: Strides::rows(inputs),
            c_row: inputs,
            write: Write::Set,
        };
        device.product_of_leaves(
            &product,
            leaf,
            D::read(&scaled),
            x_ri,
            D::part_mut(&mut grads, self.all_a()),
        );
        if let Some(dx) = dx {
            // dx[R, I] += dh a
            let product = Product {
                m: rows,
                n: inputs,
                k: between,
                a: Strides::rows(between),
                b: Strides::rows(inputs),
                c_row: inputs,
                write: Write::Add,
            };
            device.product(&product, D::read(&scaled), D::part(params, self.all_a()), dx);
        }
    }
}
