//! Token ids to vectors: a learned table of tokens, and one of positions that is added, where there is one.

use crate::describe::Description;
use crate::device::{Device, Rows, Write};
use crate::param_layout::{Init, ParamLayout};
use crate::stage::{ArenaPlan, Backward, Forward, Needs, Pass, Shape, Stage};

/// `y[b, t] = tokens[id[b, t]] + places[t]`: `[B, T]` ids to `[B, T, width]`.
#[derive(Clone, Debug)]
pub struct Embedding {
    vocabulary: usize,
    width: usize,
    time: usize,
    /// Places of the table: as many as the input has, or the texts that are gone on with.
    places: usize,
    /// Whether there is such a table.
    has_places: bool,
    /// Whether another stage writes the gradient of its tokens first.
    shares: bool,
    layout: ParamLayout,
}

impl Embedding {
    /// Tables for this many tokens, and for as many positions as the input has.
    #[must_use]
    pub fn new(vocabulary: usize, width: usize) -> Self {
        Self {
            vocabulary,
            width,
            time: 0,
            places: 0,
            has_places: true,
            shares: false,
            layout: ParamLayout::NOTHING,
        }
    }

    /// Leaves out the table of positions; that of tokens is called `weight` then.
    #[must_use]
    pub fn without_places(mut self) -> Self {
        self.has_places = false;
        self
    }

    /// What the table of tokens is called.
    fn table(&self) -> &'static str {
        if self.has_places { "tokens" } else { "weight" }
    }

    /// Shares its table of tokens with a stage behind it that is [tied](super::Chain::tied) to it.
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
        let Self { vocabulary, places: time, width, .. } = *self;
        match self.has_places {
            true => Description::Embedding { vocabulary, time, width },
            false => Description::Lookup { vocabulary, width },
        }
    }

    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn needs(&self) -> Needs {
        Needs::PLAIN
    }

    fn shares(&self) -> Option<&str> {
        self.shares.then_some(self.table())
    }

    fn decodes(&self) -> bool {
        true
    }

    fn leaves_out_gradients(&self) -> bool {
        true
    }

    fn vocabulary(&self) -> Option<usize> {
        Some(self.vocabulary)
    }

    fn plan(&mut self, _: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        let Shape::Tokens { rows, time } = *input else {
            return Err("it takes token ids, but its input is values".into());
        };
        if self.vocabulary == 0 || self.width == 0 || time == 0 {
            return Err("vocabulary, width and context must be at least 1".into());
        }
        self.time = time;
        self.places = space.kv_cache.map_or(time, |cache| cache.places);
        self.layout =
            ParamLayout::NOTHING.with(self.table(), &[self.vocabulary, self.width], Init::Normal(0.02));
        if self.has_places {
            let layout = std::mem::take(&mut self.layout);
            self.layout = layout.with("places", &[self.places, self.width], Init::Normal(0.02));
        }
        Ok(Shape::values(rows, &[time, self.width]))
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let shape = Rows { rows: pass.rows * self.time, width: self.width };
        let split = self.vocabulary * self.width;
        let table = D::part(io.params, 0..split);
        let (first, count) = pass.newest.map_or((0, self.time), |newest| (newest.seen, newest.count));
        let places = split + first * self.width..split + (first + count) * self.width;
        let places = self.has_places.then(|| (D::part(io.params, places), count));
        pass.device.embedding(shape, io.x.ids(), table, places, io.y);
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        if D::len_mut(&io.grads) == 0 {
            return;
        }
        let shape = Rows { rows: pass.rows * self.time, width: self.width };
        let (dtable, dplaces) = D::split_mut(io.grads, self.vocabulary * self.width);
        let dy = D::read(&io.dy);
        let write = if self.shares { Write::Add } else { Write::Set };
        let dplaces = self.has_places.then_some((dplaces, self.time));
        pass.device.embedding_gradient(shape, io.x.ids(), dy, write, dtable, dplaces);
    }
}
