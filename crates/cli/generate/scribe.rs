//! One of those who write: a replica, and as much of its window as the texts have tokens.
//!
//! The whole window is computed for each token. So a model is built for a shorter one first, and for twice of it when the text has
//! grown: a place has the same parameters in either.

use super::sampling::Sampling;
use crate::error::CliError;
use crate::predict::unless_it_fails;
use crate::trained::{Seat, Trained, Whole};
use dtrain_engine::{Inputs, Replica};
use dtrain_types::{Key, MicroBatch, Seed, Site, Step};

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
}

/// Writes texts.
pub struct Scribe<'a> {
    trained: &'a Trained,
    whole: &'a Whole,
    seat: Seat,
    /// Tokens that the model was trained on, and those that there are.
    context: usize,
    vocabulary: usize,
    /// How many tokens the replica takes, and itself.
    replica: Option<(usize, Box<dyn Replica>)>,
    rows: u32,
}

impl<'a> Scribe<'a> {
    /// On this seat, for so many texts at once.
    #[must_use]
    pub fn new(trained: &'a Trained, whole: &'a Whole, seat: Seat, rows: u32) -> Self {
        let spec = trained.preparation.spec();
        let vocabulary = spec.classes().unwrap_or(0) as usize;
        Self { trained, whole, seat, context: spec.input_width(), vocabulary, replica: None, rows }
    }

    /// Texts of these numbers, at most as many as `rows` says; `hear` is given the newest token of each as they come.
    ///
    /// *Errors*: of the model or its device; outputs that are no numbers; what `hear` gives. *Blocks* until the last token.
    pub fn write(
        &mut self,
        wanted: &Wanted,
        numbers: std::ops::Range<u64>,
        mut hear: impl FnMut(&[u32]) -> Result<(), CliError>,
    ) -> Result<Vec<Vec<u32>>, CliError> {
        let count = (numbers.end - numbers.start) as usize;
        let mut texts = vec![wanted.prompt.clone(); count];
        let (mut room, mut newest) = (Vec::new(), vec![0; count]);
        for place in 0..wanted.tokens {
            let outputs = self.outputs_behind(&texts)?;
            let all = numbers.clone().zip(&mut texts).zip(&mut newest);
            for (((number, text), newest), outputs) in all.zip(outputs.chunks_exact(self.vocabulary)) {
                let words = Key::new(wanted.seed, Step(number), MicroBatch(0), SITE).block(place);
                let draw =
                    (u64::from(words[0]) << 21 | u64::from(words[1]) >> 11) as f64 / (1u64 << 53) as f64;
                *newest = wanted.sampling.choose(outputs, draw, &mut room).map_err(|error| {
                    let hint = "the training has diverged: a smaller optimizer.lr may help";
                    CliError::failed(error.to_string()).hint(hint)
                })?;
                text.push(*newest);
            }
            hear(&newest)?;
        }
        Ok(texts)
    }

    /// The outputs of the model behind the last token of each text; all are as long.
    fn outputs_behind(&mut self, texts: &[Vec<u32>]) -> Result<Vec<f32>, CliError> {
        let tokens = texts[0].len().min(self.context);
        let window = tokens.next_power_of_two().clamp(SHORTEST.min(self.context), self.context);
        let replica = match self.replica.take_if(|(len, _)| *len >= window) {
            Some(replica) => self.replica.insert(replica),
            None => {
                let replica =
                    unless_it_fails(|| self.trained.replica_for(window, self.seat, self.rows, self.whole))?;
                self.replica.insert((window, replica))
            }
        };
        let (time, replica) = (replica.0, &mut replica.1);
        // What is behind the newest token does not count: no token sees what comes after it.
        let mut ids = vec![0; texts.len() * time];
        for (row, text) in ids.chunks_exact_mut(time).zip(texts) {
            row[..tokens].copy_from_slice(&text[text.len() - tokens..]);
        }
        let mut outputs = vec![0.0; ids.len() * self.vocabulary];
        unless_it_fails(|| {
            let predicted = replica.predict(texts.len(), Inputs::Tokens(&ids), &mut outputs);
            predicted.map_err(|error| CliError::failed(error.to_string()))
        })?;
        let each = outputs.chunks_exact(time * self.vocabulary);
        let behind =
            |outputs: &[f32]| outputs[(tokens - 1) * self.vocabulary..tokens * self.vocabulary].to_vec();
        Ok(each.flat_map(behind).collect())
    }
}
