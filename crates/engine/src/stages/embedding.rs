//! Token ids to vectors: a learned table of tokens and one of positions, added.

use crate::describe::Description;
use crate::device::{Device, Rows, Write};
use crate::stage::{ArenaPlan, Backward, Forward, Init, Needs, ParamLayout, Pass, Shape, Stage};

/// `y[b, t] = tokens[id[b, t]] + places[t]`: `[B, T]` ids to `[B, T, width]`.
#[derive(Clone, Debug)]
pub struct Embedding {
    vocabulary: usize,
    width: usize,
    time: usize,
    /// Whether another stage writes the gradient of its tokens first.
    shares: bool,
    layout: ParamLayout,
}

impl Embedding {
    /// Tables for this many tokens, and for as many positions as the input has.
    #[must_use]
    pub fn new(vocabulary: usize, width: usize) -> Self {
        Self { vocabulary, width, time: 0, shares: false, layout: ParamLayout::NOTHING }
    }

    /// Shares its table of tokens with a stage behind it that is [tied](super::Chain::tied) to `tokens`.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shares = true;
        self
    }
}

impl<D: Device> Stage<D> for Embedding {
    fn kind(&self) -> &'static str {
        "embedding"
    }

    fn describe(&self) -> Description {
        let Self { vocabulary, time, width, .. } = *self;
        Description::Embedding { vocabulary, time, width }
    }

    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn needs(&self) -> Needs {
        Needs::PLAIN
    }

    fn shares(&self) -> Option<&str> {
        self.shares.then_some("tokens")
    }

    fn vocabulary(&self) -> Option<usize> {
        Some(self.vocabulary)
    }

    fn plan(&mut self, _: &D, input: &Shape, _: &mut ArenaPlan) -> Result<Shape, String> {
        let Shape::Tokens { rows, time } = *input else {
            return Err("it takes token ids, but its input is values".into());
        };
        if self.vocabulary == 0 || self.width == 0 || time == 0 {
            return Err("vocabulary, width and context must be at least 1".into());
        }
        self.time = time;
        self.layout = ParamLayout::NOTHING
            .with("tokens", &[self.vocabulary, self.width], Init::Normal(0.02))
            .with("places", &[time, self.width], Init::Normal(0.02));
        Ok(Shape::values(rows, &[time, self.width]))
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let shape = Rows { rows: pass.rows * self.time, width: self.width };
        let split = self.vocabulary * self.width;
        let table = D::part(io.params, 0..split);
        let places = D::part(io.params, split..split + self.time * self.width);
        pass.device.embedding(shape, io.x.ids(), table, Some((places, self.time)), io.y);
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let shape = Rows { rows: pass.rows * self.time, width: self.width };
        let (dtable, dplaces) = D::split_mut(io.grads, self.vocabulary * self.width);
        let dy = D::read(&io.dy);
        let write = if self.shares { Write::Add } else { Write::Set };
        pass.device.embedding_gradient(shape, io.x.ids(), dy, write, dtable, Some((dplaces, self.time)));
    }
}
