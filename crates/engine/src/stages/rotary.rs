//! Rotary positions in front of attention, and keys and values that heads share.

use crate::describe::Description;
use crate::device::{Device, RopeScaling, RotaryShape, RotarySpeeds};
use crate::stage::{ArenaPlan, Backward, Forward, Needs, Pass, Shape, Stage};

/// Queries, keys and values `[T, heads + 2 kv_heads, head]` as [`Attention`](super::Attention) takes them, `[T, 3, heads, head]`: queries
/// and keys turned by their places, keys and values there for each head of their group.
///
/// *Source*: Su et al., "RoFormer", 2021; Ainslie et al., "GQA", 2023. Planes lie as in Llama of Hugging Face's transformers.
#[derive(Clone, Debug)]
pub struct Rotary {
    theta: f64,
    scaling: RopeScaling,
    shape: RotaryShape,
}

impl Rotary {
    /// Of so many heads of queries, and so many of keys and values. The last plane of a head turns by nearly `1 / theta` a place.
    #[must_use]
    pub fn new(heads: usize, kv_heads: usize, theta: f64) -> Self {
        let speeds = RotarySpeeds { rate: 1.0, slowed: 1.0, slope: 0.0, shift: 0.0 };
        let shape = RotaryShape { batch: 0, time: 0, first: 0, heads, kv_heads, head: 0, speeds };
        Self { theta, scaling: RopeScaling::None, shape }
    }

    /// Scales positions.
    #[must_use]
    pub fn scaled(mut self, scaling: RopeScaling) -> Self {
        self.scaling = scaling;
        self
    }

    /// The rows of a pass: of whole texts, or the newest tokens of some.
    fn of<D: Device>(&self, pass: &Pass<'_, D>) -> RotaryShape {
        match pass.newest {
            None => RotaryShape { batch: pass.rows, ..self.shape },
            Some(newest) => RotaryShape {
                batch: pass.rows / newest.count,
                time: newest.count,
                first: newest.seen,
                ..self.shape
            },
        }
    }
}

impl<D: Device> Stage<D> for Rotary {
    fn kind(&self) -> &'static str {
        "rotary"
    }

    fn describe(&self) -> Description {
        let RotaryShape { heads, kv_heads, head, time, .. } = self.shape;
        Description::Rotary { heads, kv_heads, head, time, theta: self.theta, scaling: self.scaling }
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

    fn plan(&mut self, _: &D, input: &Shape, _: &mut ArenaPlan) -> Result<Shape, String> {
        let dims = input.dims()?;
        let RotaryShape { heads, kv_heads, .. } = self.shape;
        let [time, packed] = *dims else {
            return Err(format!("it takes [time, width], its input is {dims:?}"));
        };
        if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(format!(
                "{kv_heads} heads of keys and values cannot be shared by {heads} of queries"
            ));
        }
        let all = heads + 2 * kv_heads;
        let head = packed / all;
        if !packed.is_multiple_of(all) || head % 2 != 0 || head > RotaryShape::MOST_HEAD {
            let most = RotaryShape::MOST_HEAD;
            return Err(format!(
                "a width of {packed} is not {all} heads of an even width of at most {most} each"
            ));
        }
        if !(self.theta >= 1.0 && self.theta.is_finite()) {
            return Err(format!("theta must be at least 1, got {}", self.theta));
        }
        let speeds = RotarySpeeds::new(self.theta, head, self.scaling);
        self.shape = RotaryShape { batch: input.rows(), time, head, speeds, ..self.shape };
        Ok(Shape::values(input.rows(), &[time, self.shape.spread()]))
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        pass.device.rotary(&self.of(pass), io.x.values(), io.y);
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        if let Some(dx) = io.dx {
            pass.device.rotary_gradient(&self.of(pass), D::read(&io.dy), dx);
        }
    }
}
