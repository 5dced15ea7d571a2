//! One of those who write: it asks a reader what comes next, and draws.

use super::reader::TextReader;
use super::sampling::Sampling;
use crate::error::CliError;
use crate::trained::{Seat, Trained, Whole};
use dtrain_types::{Key, MicroBatch, Seed, Site, Step};
use std::ops::Range;

/// Draws of texts, among all that draw.
const SITE: Site = Site(0x5445_5854);

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
pub struct Scribe<'a>(TextReader<'a>);

impl<'a> Scribe<'a> {
    /// On this seat, for so many texts at once.
    #[must_use]
    pub fn new(trained: &'a Trained, whole: &'a Whole, seat: Seat, rows: u32) -> Self {
        Self(TextReader::new(trained, whole, seat, rows))
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
        self.0.begin(count, &wanted.prompt, wanted.prompt.len() + wanted.tokens as usize);
        for place in 0..wanted.tokens {
            let outputs = self.0.outputs_behind(&texts)?;
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
}

/// A number from 0 to below 1, of 53 bits.
fn draw(seed: Seed, text: u64, place: u32) -> f64 {
    let words = Key::new(seed, Step(text), MicroBatch(0), SITE).block(place);
    (u64::from(words[0]) << 21 | u64::from(words[1]) >> 11) as f64 / (1u64 << 53) as f64
}
