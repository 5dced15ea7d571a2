//! RMS norms of the heads of queries and keys, as Qwen 3 has them, between the layers that make them and their rotary positions.
//!
//! The heads of a kind lie side by side in each row, rows of all kinds behind one another: they are brought together, normed as the rows that they
//! are, and brought back.

use crate::describe::Description;
use crate::device::{Device, NormGradients, NormInputs, RowNorm, Rows};
use crate::param_layout::{Init, ParamLayout};
use crate::stage::{ArenaPlan, Backward, Forward, Needs, Pass, Shape, Stage};
use std::ops::Range;

/// Queries, keys and values `[T, heads + 2 kv_heads, head]`, of which each head of queries and of keys is divided by the root of its mean of
/// squares. Tensors: `q_norm.weight`, `k_norm.weight`, `[head]` each.
#[derive(Clone, Debug)]
pub struct HeadNorm {
    heads: usize,
    kv_heads: usize,
    head: usize,
    epsilon: f32,
    layout: ParamLayout,
}

/// Heads that have one gain.
struct Kind {
    /// How many.
    heads: usize,
    /// Their elements of a row.
    places: Range<usize>,
    /// Their gain.
    gain: Range<usize>,
}

impl HeadNorm {
    /// Of so many heads of queries, and so many of keys and values; adds this to each mean of squares.
    #[must_use]
    pub fn new(heads: usize, kv_heads: usize, epsilon: f32) -> Self {
        Self { heads, kv_heads, head: 0, epsilon, layout: ParamLayout::NOTHING }
    }

    /// Elements of a row.
    fn packed(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head
    }

    /// Those that stay as they are.
    fn values(&self) -> Range<usize> {
        (self.heads + self.kv_heads) * self.head..self.packed()
    }

    fn kinds(&self) -> [Kind; 2] {
        let Self { heads, kv_heads, head, .. } = *self;
        let keys = heads * head..(heads + kv_heads) * head;
        [
            Kind { heads, places: 0..heads * head, gain: 0..head },
            Kind { heads: kv_heads, places: keys, gain: head..2 * head },
        ]
    }

    /// The norm of a kind, in so many rows.
    fn norm(&self, kind: &Kind, rows: usize) -> RowNorm {
        RowNorm::rms(Rows { rows: rows * kind.heads, width: self.head }, self.epsilon)
    }

    /// The heads of a kind out of rows, one behind the other.
    fn bring<D: Device>(
        &self,
        device: &D,
        rows: usize,
        places: &Range<usize>,
        x: D::Ref<'_>,
        to: D::Mut<'_>,
    ) {
        let (width, len) = (places.len(), D::len(x));
        let of = D::part(x, places.start..len);
        device.copy_rows(Rows { rows, width }, [self.packed(), width], of, to);
    }

    /// And back.
    fn put<D: Device>(
        &self,
        device: &D,
        rows: usize,
        places: &Range<usize>,
        from: D::Ref<'_>,
        y: &mut D::Mut<'_>,
    ) {
        let (width, len) = (places.len(), D::len_mut(y));
        let of = D::part_mut(y, places.start..len);
        device.copy_rows(Rows { rows, width }, [width, self.packed()], from, of);
    }

    /// What is neither a query nor a key.
    fn pass_on<D: Device>(&self, device: &D, rows: usize, x: D::Ref<'_>, y: &mut D::Mut<'_>) {
        let (packed, places) = (self.packed(), self.values());
        let (from, to) = (D::len(x), D::len_mut(y));
        let shape = Rows { rows, width: places.len() };
        let to = D::part_mut(y, places.start..to);
        device.copy_rows(shape, [packed; 2], D::part(x, places.start..from), to);
    }
}

impl<D: Device> Stage<D> for HeadNorm {
    fn kind(&self) -> &'static str {
        "head_norm"
    }

    fn describe(&self) -> Description {
        let Self { heads, kv_heads, head, epsilon, .. } = *self;
        Description::HeadNorm { heads, kv_heads, head, epsilon }
    }

    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn needs(&self) -> Needs {
        Needs::PLAIN
    }

    fn decodes(&self) -> bool {
        true
    }

    fn leaves_out_gradients(&self) -> bool {
        true
    }

    fn plan(&mut self, device: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        let (packed, all) = (input.width()?, self.heads + 2 * self.kv_heads);
        if self.heads == 0 || self.kv_heads == 0 || !packed.is_multiple_of(all) {
            return Err(format!("a width of {packed} is not {all} heads of one width"));
        }
        self.head = packed / all;
        let gain = Init::Constant(1.0);
        let layout = ParamLayout::NOTHING.with("q_norm.weight", &[self.head], gain);
        self.layout = layout.with("k_norm.weight", &[self.head], gain);
        let rows = input.rows() * input.per_row() / packed;
        let [queries, keys] = self.kinds().map(|kind| self.norm(&kind, rows).rows);
        space.saved += 2 * (queries.rows + keys.rows);
        let scratch =
            |kind: Rows| 3 * device.activation_len(kind.rows * kind.width) + device.layer_norm_scratch(kind);
        space.scratch += scratch(queries).max(scratch(keys)) + self.head;
        Ok(input.clone())
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let Forward { params, x, mut y, mut saved, mut scratch, .. } = io;
        let (device, x) = (pass.device, x.values());
        let rows = D::len(x) / self.packed();
        let mut kept = 0;
        for kind in self.kinds() {
            let norm = self.norm(&kind, rows);
            let len = norm.rows.rows * self.head;
            let memory = device.activation_len(len);
            let (mut heads, mut normed) = D::split_mut(D::part_mut(&mut scratch, 0..2 * memory), memory);
            self.bring(device, rows, &kind.places, x, device.activations_mut(&mut heads, len));
            let of = kept..kept + 2 * norm.rows.rows;
            kept = of.end;
            device.layer_norm(
                norm,
                device.activations(D::read(&heads), len),
                D::part(params, kind.gain),
                None,
                device.activations_mut(&mut normed, len),
                D::part_mut(&mut saved, of),
            );
            self.put(device, rows, &kind.places, device.activations(D::read(&normed), len), &mut y);
        }
        self.pass_on(device, rows, x, &mut y);
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let Backward { params, x, saved, dy, mut dx, mut grads, mut scratch, .. } = io;
        let (device, x, dy, saved) = (pass.device, x.values(), D::read(&dy), D::read(&saved));
        let is_trained = D::len_mut(&grads) > 0;
        let rows = D::len(x) / self.packed();
        let mut kept = 0;
        for kind in self.kinds() {
            let norm = self.norm(&kind, rows);
            let len = norm.rows.rows * self.head;
            let memory = device.activation_len(len);
            let needed = 3 * memory + device.layer_norm_scratch(norm.rows) + self.head;
            let (mut heads, rest) = D::split_mut(D::part_mut(&mut scratch, 0..needed), memory);
            let (mut gradients, rest) = D::split_mut(rest, memory);
            let (mut inner, rest) = D::split_mut(rest, memory);
            let (mut unwanted, sums) = D::split_mut(rest, self.head);
            self.bring(device, rows, &kind.places, x, device.activations_mut(&mut heads, len));
            self.bring(device, rows, &kind.places, dy, device.activations_mut(&mut gradients, len));
            let of = kept..kept + 2 * norm.rows.rows;
            kept = of.end;
            let inputs = NormInputs {
                x: device.activations(D::read(&heads), len),
                gain: D::part(params, kind.gain.clone()),
                saved: D::part(saved, of),
                dy: device.activations(D::read(&gradients), len),
            };
            let outputs = NormGradients {
                dx: dx.is_some().then(|| device.activations_mut(&mut inner, len)),
                // Of what stays as it is, nobody reads it.
                dgain: match is_trained {
                    true => D::part_mut(&mut grads, kind.gain),
                    false => D::part_mut(&mut unwanted, 0..self.head),
                },
                dbias: None,
            };
            device.layer_norm_gradient(norm, inputs, outputs, sums);
            if let Some(dx) = &mut dx {
                self.put(device, rows, &kind.places, device.activations(D::read(&inner), len), dx);
            }
        }
        if let Some(dx) = &mut dx {
            self.pass_on(device, rows, dy, dx);
        }
    }
}
