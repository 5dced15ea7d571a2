//! What a model says comes next: a replica that reads texts as they grow.
//!
//! On a CPU it keeps the keys and values of what it has read, so that each token is computed once. A text that is longer than the model sees at once has other places with
//! each token, and on a GPU nothing is kept yet: then the whole window is computed each time. So a model is built for a short one first, and for twice of it when the text has
//! grown: a place has the same parameters in either. On a CPU the bits are the same in both ways.

use crate::error::CliError;
use crate::predict::{at_once, unless_it_fails};
use crate::trained::{Seat, Trained, Whole};
use dtrain_engine::cpu::Cpu;
use dtrain_engine::device::Newest;
use dtrain_engine::stage::KvCache;
use dtrain_engine::{Inputs, ModelReplica, Replica};

/// The shortest window that a model is built for. *Units*: tokens.
const SHORTEST: usize = 16;
/// Tokens of all texts that are read at once: of a prompt, for of what comes behind it there is one a text.
const AT_ONCE: usize = 64;
/// What one reader keeps of all its texts. *Units*: bytes.
const KEPT: usize = 1 << 30;

/// Reads texts, of which all are as long.
pub struct TextReader<'a> {
    maker: Maker<'a>,
    /// Places that the texts will have, of those that the model sees.
    places: usize,
    begun: Begun,
    reads: Reads,
    /// The outputs behind the last token of each text.
    newest: Vec<f32>,
}

/// What texts begin with.
#[derive(Clone, Copy, Debug, Default)]
struct Begun {
    /// How many there are.
    texts: usize,
    /// How many tokens all of them begin with.
    common: usize,
}

/// What replicas are made of.
#[derive(Clone, Copy)]
struct Maker<'a> {
    trained: &'a Trained,
    whole: &'a Whole,
    seat: Seat,
    rows: u32,
    /// Tokens that the model was trained to see, and how many different ones there are.
    context: usize,
    vocabulary: usize,
}

/// In which way it reads.
enum Reads {
    Unknown,
    Newest(Box<Decoder>),
    All(Option<Window>),
}

/// A replica that keeps what it saw.
struct Decoder {
    replica: ModelReplica<Cpu>,
    /// Places of a text that it has room for.
    places: usize,
    /// Those that it has seen of these texts.
    seen: usize,
    /// What they were of the first.
    first: Vec<u32>,
    begun: Begun,
    ids: Vec<u32>,
}

/// A replica for so many tokens, and the memory that goes in and out.
struct Window {
    tokens: usize,
    /// Texts at once.
    rows: usize,
    replica: Box<dyn Replica>,
    ids: Vec<u32>,
    outputs: Vec<f32>,
}

/// How many texts, of at most so many tokens, one that computes on such seats takes at once; at most `asked`.
///
/// *Errors*: the model does not fit its own run.
pub fn texts_at_once(trained: &Trained, longest: usize, seat: Seat, asked: u32) -> Result<u32, CliError> {
    let places = longest.min(trained.preparation.spec().input_width());
    let kept = match seat {
        Seat::Cores(_) => trained.kept_of_a_text(places)?,
        Seat::Gpu(_) => None,
    };
    Ok(match kept {
        Some(bytes) => asked.min(u32::try_from(KEPT / bytes.max(1)).unwrap_or(u32::MAX)).max(1),
        None => at_once(&trained.preparation, asked),
    })
}

impl<'a> TextReader<'a> {
    /// On this seat, for so many texts at once.
    pub fn new(trained: &'a Trained, whole: &'a Whole, seat: Seat, rows: u32) -> Self {
        let spec = trained.preparation.spec();
        let vocabulary = spec.classes().unwrap_or(0) as usize;
        let maker = Maker { trained, whole, seat, rows, context: spec.input_width(), vocabulary };
        let newest = vec![0.0; rows as usize * vocabulary];
        Self { maker, places: 0, begun: Begun::default(), reads: Reads::Unknown, newest }
    }

    /// So many other texts from here on, which begin like this and will have at most so many tokens. What they have in common with those before is not read again.
    pub fn begin(&mut self, texts: usize, prompt: &[u32], longest: usize) {
        self.places = longest.min(self.maker.context);
        self.begun = Begun { texts, common: prompt.len() };
        match &mut self.reads {
            Reads::Newest(decoder) if decoder.places >= self.places => decoder.begin(self.begun, prompt),
            reads => {
                // Texts that grew once grow again, as a talk does.
                if let Reads::Newest(_) = reads {
                    self.places = self.places.next_power_of_two().min(self.maker.context);
                }
                *reads = Reads::Unknown;
            }
        }
    }

    /// The outputs of the model behind the last token of each text. The texts are those of the call before, with more tokens, until [`TextReader::begin`] says otherwise.
    ///
    /// *Errors*: of the model or its device. *Blocks* while it computes.
    pub fn outputs_behind(&mut self, texts: &[Vec<u32>]) -> Result<impl Iterator<Item = &[f32]>, CliError> {
        let Self { maker, places, begun, reads, newest } = self;
        let tokens = texts[0].len();
        match reads {
            Reads::Unknown if tokens <= maker.context => {
                *reads = maker.decoder(*places, *begun)?.map_or(Reads::All(None), Reads::Newest);
            }
            // From here on each token moves all others by a place.
            Reads::Unknown | Reads::Newest(_) if tokens > maker.context => *reads = Reads::All(None),
            _ => {}
        }
        let newest = &mut newest[..texts.len() * maker.vocabulary];
        match reads {
            Reads::Newest(decoder) => decoder.read(texts, newest)?,
            Reads::All(window) => {
                let tokens = tokens.min(maker.context);
                let length = maker.window_for(tokens);
                // The one before goes first: two would have no room on a full GPU.
                drop(window.take_if(|window| window.tokens != length));
                if window.is_none() {
                    *window = Some(maker.window(length)?);
                }
                let window = window.as_mut().expect("it was just made");
                unless_it_fails(|| window.read(texts, tokens, newest))?;
            }
            Reads::Unknown => unreachable!("it is known by now"),
        }
        Ok(newest.chunks_exact(maker.vocabulary))
    }
}

impl Maker<'_> {
    /// One that keeps what it saw, of so many places, where model and device can.
    fn decoder(&self, places: usize, begun: Begun) -> Result<Option<Box<Decoder>>, CliError> {
        let Seat::Cores(threads) = self.seat else { return Ok(None) };
        let texts = self.rows as usize;
        let tokens = texts * AT_ONCE.div_ceil(texts);
        let replica = self.trained.decoder(tokens, KvCache { texts, places }, threads, self.whole)?;
        let ids = Vec::with_capacity(tokens);
        let first = Vec::with_capacity(places);
        Ok(replica.map(|replica| Box::new(Decoder { replica, places, seen: 0, first, begun, ids })))
    }

    /// How long the window for so many tokens is: by their number alone, so that the bits are.
    fn window_for(&self, tokens: usize) -> usize {
        tokens.next_power_of_two().clamp(SHORTEST.min(self.context), self.context)
    }

    fn window(&self, tokens: usize) -> Result<Window, CliError> {
        let Self { trained, whole, seat, rows, vocabulary, .. } = *self;
        // Of all their tokens there are outputs.
        let rows = at_once(&trained.preparation, rows);
        let replica = unless_it_fails(|| trained.replica_for(tokens, seat, rows, whole))?;
        let ids = vec![0; rows as usize * tokens];
        let outputs = vec![0.0; ids.len() * vocabulary];
        Ok(Window { tokens, rows: rows as usize, replica, ids, outputs })
    }
}

impl Decoder {
    /// Goes back to what it has seen of texts that begin like this. The last token is read again, for what comes behind it.
    fn begin(&mut self, begun: Begun, prompt: &[u32]) {
        let same = self.first.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let same = match self.begun.texts {
            1 if begun.texts == 1 => same,
            // Of several it is known what all of them began with.
            before if begun.texts <= before => same.min(self.begun.common),
            _ => 0,
        };
        self.seen = same.min(prompt.len().saturating_sub(1));
        self.begun = begun;
    }

    /// Reads what is new of texts, and writes the outputs behind the last token of each.
    fn read(&mut self, texts: &[Vec<u32>], newest: &mut [f32]) -> Result<(), CliError> {
        let (tokens, most) = (texts[0].len(), AT_ONCE.div_ceil(texts.len()));
        while tokens - self.seen > most {
            self.go_on(texts, most)?;
        }
        let count = tokens - self.seen;
        let vocabulary = newest.len() / texts.len();
        let outputs = self.go_on(texts, count)?.chunks_exact(count * vocabulary);
        for (newest, outputs) in newest.chunks_exact_mut(vocabulary).zip(outputs) {
            newest.copy_from_slice(&outputs[(count - 1) * vocabulary..]);
        }
        Ok(())
    }

    /// Reads so many tokens more of each.
    fn go_on(&mut self, texts: &[Vec<u32>], count: usize) -> Result<&[f32], CliError> {
        let Self { replica, seen, first, ids, .. } = self;
        let newest = Newest { seen: *seen, count };
        first.truncate(newest.seen);
        first.extend_from_slice(&texts[0][newest.seen..][..count]);
        ids.clear();
        ids.extend(texts.iter().flat_map(|text| &text[newest.seen..][..count]));
        *seen += count;
        replica.decode(newest, ids).map_err(|error| CliError::failed(error.to_string()))
    }
}

impl Window {
    /// Reads the last so many tokens of texts, and writes the outputs behind the last of each.
    fn read(&mut self, texts: &[Vec<u32>], tokens: usize, newest: &mut [f32]) -> Result<(), CliError> {
        let Self { tokens: each, rows, replica, ids, outputs } = self;
        let vocabulary = newest.len() / texts.len();
        for (texts, newest) in texts.chunks(*rows).zip(newest.chunks_mut(*rows * vocabulary)) {
            // What is behind the newest token does not count: no token sees what comes after it.
            for (row, text) in ids.chunks_exact_mut(*each).zip(texts) {
                row[..tokens].copy_from_slice(&text[text.len() - tokens..]);
            }
            let all = texts.len() * *each;
            let outputs = &mut outputs[..all * vocabulary];
            let predicted = replica.predict(texts.len(), Inputs::Tokens(&ids[..all]), outputs);
            predicted.map_err(|error| CliError::failed(error.to_string()))?;
            for (newest, outputs) in
                newest.chunks_exact_mut(vocabulary).zip(outputs.chunks_exact(*each * vocabulary))
            {
                newest.copy_from_slice(&outputs[(tokens - 1) * vocabulary..][..vocabulary]);
            }
        }
        Ok(())
    }
}
