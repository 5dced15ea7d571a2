//! Self-attention over packed queries, keys and values; the projections around it are linear stages.

use crate::describe::Description;
use crate::device::{Attended, AttentionShape, Device, Mask, reborrow};
use crate::stage::{ArenaPlan, Backward, Forward, GradientUse, KvCache, Needs, Pass, Shape, Stage};

/// The core of self-attention: `[B, T, 3 x heads x head]` to `[B, T, heads x head]`.
#[derive(Clone, Debug)]
pub struct Attention {
    shape: AttentionShape,
    kv_cache: Option<KvCache>,
}

impl Attention {
    /// Causal attention with this many heads.
    #[must_use]
    pub fn new(heads: usize) -> Self {
        let shape = AttentionShape { batch: 0, time: 0, heads, head: 0, mask: Mask::Causal };
        Self { shape, kv_cache: None }
    }

    /// Each position sees all of them.
    #[must_use]
    pub fn unmasked(mut self) -> Self {
        self.shape.mask = Mask::None;
        self
    }

    fn of(&self, rows: usize) -> AttentionShape {
        AttentionShape { batch: rows, ..self.shape }
    }
}

impl<D: Device> Stage<D> for Attention {
    fn kind(&self) -> &'static str {
        "attention"
    }

    fn describe(&self) -> Description {
        let AttentionShape { heads, head, time, mask, .. } = self.shape;
        Description::Attention { heads, head, time, mask }
    }

    fn needs(&self) -> Needs {
        Needs { output: true, gradient: GradientUse::Reads, view: false }
    }

    fn stacks(&self) -> bool {
        true
    }

    fn decodes(&self) -> bool {
        self.shape.mask == Mask::Causal
    }

    fn plan(&mut self, device: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        let dims = input.dims()?;
        let [time, packed] = *dims else {
            return Err(format!("it takes [time, 3 x width], its input is {dims:?}"));
        };
        let heads = self.shape.heads;
        if heads == 0 || !packed.is_multiple_of(3 * heads) {
            return Err(format!("a width of {} cannot be shared by {heads} heads", packed / 3));
        }
        self.shape = AttentionShape { batch: input.rows(), time, head: packed / 3 / heads, ..self.shape };
        self.kv_cache = space.kv_cache;
        if let Some(KvCache { texts, places }) = space.kv_cache {
            // What it saves is what it knows of the tokens before.
            self.shape = AttentionShape { batch: texts, time: places, ..self.shape };
            space.saved += device.kv_cache_len(&self.shape);
            return Ok(Shape::values(input.rows(), &[time, packed / 3]));
        }
        space.saved += device.attention_saved(&self.shape);
        space.scratch += device.attention_scratch(&self.shape);
        Ok(Shape::values(input.rows(), &[time, packed / 3]))
    }

    fn forward(&self, pass: &Pass<'_, D>, mut io: Forward<'_, D>) {
        if self.kv_cache.is_some() {
            let newest = pass.newest.expect("a model that keeps keys and values takes the newest tokens");
            let shape = self.of(pass.rows / newest.count);
            return pass.device.attention_of_newest(&shape, newest, io.x.values(), io.saved, io.y);
        }
        let shape = self.of(pass.rows);
        let saved = D::part_mut(&mut io.saved, 0..pass.device.attention_saved(&shape));
        let scratch = D::part_mut(&mut io.scratch, 0..pass.device.attention_scratch(&shape));
        pass.device.attention(&shape, io.x.values(), io.y, saved, scratch);
    }

    fn backward(&self, pass: &Pass<'_, D>, mut io: Backward<'_, D>) {
        let shape = self.of(pass.rows);
        let Some(dx) = io.dx else { return };
        let saved = D::part(D::read(&io.saved), 0..pass.device.attention_saved(&shape));
        let scratch = D::part_mut(&mut io.scratch, 0..pass.device.attention_scratch(&shape));
        let dy = D::read(&io.dy);
        let (qkv, y) = (reborrow::<D>(io.x.values()), reborrow::<D>(io.y));
        pass.device.attention_gradient(&shape, Attended { qkv, y, saved, dy }, dx, scratch);
    }
}
