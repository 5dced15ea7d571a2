//! One of those who write: a replica, and as much of its window as the texts have tokens.
//!
//! The whole window is computed for each token. So a model is built for a short one first, and for twice of it when the text has grown: a place
//! has the same parameters in either.

use super::sampling::Sampling;
use crate::error::CliError;
use crate::predict::unless_it_fails;
use crate::trained::{Seat, Trained, Whole};
use dtrain_engine::{Inputs, Replica};
use dtrain_types::{Key, MicroBatch, Seed, Site, Step};
use std::ops::Range;

/// Draws of texts, among all that draw.
const SITE: Site = Site(0x5445_5854);

/// The shortest window that a model is built for. *Units*: tokens.
const SHORTEST: usize = 16;

/// What is wanted of each text.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What it begins with; not empty.
    pub prompt: Vec<u32>,
    /// How many tokens come behind that.
    pub tokens: u32,
    /// How each is chosen.
    pub sampling: Sampling,
    /// What is drawn follows from it, and from the number of the text.
    pub seed: Seed,
    /// The token that ends a text, if there is one.
    pub end: Option<u32>,
}

/// A text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// Prompt and all, without the token that ended it.
    pub tokens: Vec<u32>,
    /// Whether it has come to its end, and not to what is wanted.
    pub has_ended: bool,
}

/// Writes texts.
pub struct Scribe<'a> {
    trained: &'a Trained,
    whole: &'a Whole,
    seat: Seat,
    rows: u32,
    /// Tokens that the model was trained to see, and how many different ones there are.
    context: usize,
    vocabulary: usize,
    window: Option<Window>,
}

/// A replica for so many tokens, and the memory that goes in and out.
struct Window {
    tokens: usize,
    replica: Box<dyn Replica>,
    ids: Vec<u32>,
    outputs: Vec<f32>,
}

impl<'a> Scribe<'a> {
    /// On this seat, for so many texts at once.
    #[must_use]
    pub fn new(trained: &'a Trained, whole: &'a Whole, seat: Seat, rows: u32) -> Self {
        let spec = trained.preparation.spec();
        let vocabulary = spec.classes().unwrap_or(0) as usize;
        Self { trained, whole, seat, rows, context: spec.input_width(), vocabulary, window: None }
    }

    /// Texts of these numbers, at most as many as `rows` says; `hear` is given the newest token of each as they come, until all have ended.
    ///
    /// *Errors*: of the model or its device; outputs that are no numbers; what `hear` gives. *Blocks* until the last token.
    pub fn write(
        &mut self,
        wanted: &Wanted,
        numbers: Range<u64>,
        mut hear: impl FnMut(&[u32]) -> Result<(), CliError>,
    ) -> Result<Vec<Text>, CliError> {
        let count = (numbers.end - numbers.start) as usize;
        let mut texts = vec![wanted.prompt.clone(); count];
        let (mut room, mut newest) = (Vec::new(), vec![0; count]);
        // How long each is that has ended. It goes on with the others, which are as long, and nobody hears of it.
        let mut ended = vec![None; count];
        for place in 0..wanted.tokens {
            let outputs = self.outputs_behind(&texts)?;
            for ((number, newest), outputs) in numbers.clone().zip(&mut newest).zip(outputs) {
                let draw = draw(wanted.seed, number, place);
                *newest = wanted.sampling.choose(outputs, draw, &mut room).map_err(|error| {
                    let hint = "the training has diverged: a smaller optimizer.lr may help";
                    CliError::failed(error.to_string()).hint(hint)
                })?;
            }
            texts.iter_mut().zip(&newest).for_each(|(text, newest)| text.push(*newest));
            for ((ended, text), newest) in ended.iter_mut().zip(&texts).zip(&newest) {
                if ended.is_none() && Some(*newest) == wanted.end {
                    *ended = Some(text.len() - 1);
                }
            }
            if ended.iter().all(Option::is_some) {
                break;
            }
            hear(&newest)?;
        }
        let cut = |(mut tokens, ended): (Vec<u32>, Option<usize>)| {
            tokens.truncate(ended.unwrap_or(tokens.len()));
            Text { tokens, has_ended: ended.is_some() }
        };
        Ok(texts.into_iter().zip(ended).map(cut).collect())
    }

    /// The outputs of the model behind the last token of each text; all are as long.
    fn outputs_behind(&mut self, texts: &[Vec<u32>]) -> Result<impl Iterator<Item = &[f32]>, CliError> {
        let tokens = texts[0].len().min(self.context);
        let (rows, vocabulary) = (texts.len(), self.vocabulary);
        let Window { tokens: time, replica, ids, outputs } = self.window_for(tokens)?;
        let time = *time;
        // What is behind the newest token does not count: no token sees what comes after it.
        for (row, text) in ids.chunks_exact_mut(time).zip(texts) {
            row[..tokens].copy_from_slice(&text[text.len() - tokens..]);
        }
        let (ids, outputs) = (&ids[..rows * time], &mut outputs[..rows * time * vocabulary]);
        unless_it_fails(|| {
            let predicted = replica.predict(rows, Inputs::Tokens(ids), outputs);
            predicted.map_err(|error| CliError::failed(error.to_string()))
        })?;
        let each = outputs.chunks_exact(time * vocabulary);
        Ok(each.map(move |outputs| &outputs[(tokens - 1) * vocabulary..][..vocabulary]))
    }

    /// The window for so many tokens. It depends on their number alone, so that the bits do.
    fn window_for(&mut self, tokens: usize) -> Result<&mut Window, CliError> {
        let tokens = tokens.next_power_of_two().clamp(SHORTEST.min(self.context), self.context);
        // The one before goes first: two would have no room on a full GPU.
        let window = match self.window.take().filter(|window| window.tokens == tokens) {
            Some(window) => window,
            None => {
                let Self { trained, whole, seat, rows, .. } = *self;
                let replica = unless_it_fails(|| trained.replica_for(tokens, seat, rows, whole))?;
                let ids = vec![0; rows as usize * tokens];
                let outputs = vec![0.0; ids.len() * self.vocabulary];
                Window { tokens, replica, ids, outputs }
            }
        };
        Ok(self.window.insert(window))
    }
}

/// A number from 0 to below 1, of 53 bits.
fn draw(seed: Seed, text: u64, place: u32) -> f64 {
    let words = Key::new(seed, Step(text), MicroBatch(0), SITE).block(place);
    (u64::from(words[0]) << 21 | u64::from(words[1]) >> 11) as f64 / (1u64 << 53) as f64
}
