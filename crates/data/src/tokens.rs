//! Token ids that a tokenizer wrote: little-endian `u16`, one after the other, nothing else in the file, cut into windows.
//!
//! This is what nanoGPT's prepare.py writes, to `train.bin` and `val.bin`. Files are mapped and read where a sample is
//! needed, so they may be larger than memory, and an id beyond the vocabulary is found when its sample is read. Of a tokenizer that lies
//! beside them it knows how many ids it has, and not which text an id stands for.

use crate::mmap::Mapping;
use crate::windows::{Sequence, Windows};
use crate::{DataError, Dataset, Opened, SampleSlot, SampleSpec};
use dtrain_types::Key;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;

const NEEDS: &str = "kind tokens needs `path`, a file of u16 token ids or a folder with train.bin (and val.bin, if there is one)";
/// Bytes of one id.
const WIDTH: usize = 2;
const NUMPY_MAGIC: &[u8] = b"\x93NUMPY";
/// What a tokenizer of Hugging Face is called.
pub const TOKENIZER: &str = "tokenizer.json";
/// How many ids GPT-2 has.
const OF_GPT2: u32 = 50_257;
/// The most ids there are of two bytes each.
const MOST: u64 = 1 << 16;

/// Which token ids, and how they are cut.
#[derive(Clone, Debug, PartialEq)]
pub struct TokensOptions {
    /// The file, or a folder with `train.bin` and, if it is there, `val.bin`.
    pub path: PathBuf,
    /// A file for validation; without it `val.bin` of the folder, or else `val_split`.
    pub val_path: Option<PathBuf>,
    /// Tokens in one sample.
    pub context: usize,
    /// How many ids there are: every id is below it. None is as many as the tokenizer has that lies beside them, or else those of GPT-2.
    pub vocabulary: Option<u32>,
    /// The share at the end that is held out if there is no file for validation; 0 is none.
    pub val_split: f64,
}

impl TokensOptions {
    /// Windows of 128 tokens, the last tenth held out if there is no file for validation.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), val_path: None, context: 128, vocabulary: None, val_split: 0.1 }
    }

    /// The tokenizer that made the ids, where it lies beside them: in their folder.
    #[must_use]
    pub fn tokenizer(&self) -> Option<PathBuf> {
        let folder = if self.path.is_dir() { &self.path } else { self.path.parent()? };
        Some(folder.join(TOKENIZER)).filter(|file| file.is_file())
    }

    fn vocabulary(&self) -> Result<u32, DataError> {
        match (self.vocabulary, self.tokenizer()) {
            (Some(vocabulary), _) => Ok(vocabulary),
            (None, Some(file)) => vocabulary_of(file),
            (None, None) => Ok(OF_GPT2),
        }
    }
}

/// How many ids a `tokenizer.json` has: one more than the greatest.
fn vocabulary_of(file: PathBuf) -> Result<u32, DataError> {
    /// Tokens by their names, or a list of them.
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Vocabulary {
        Named(BTreeMap<String, u32>),
        Listed(Vec<serde::de::IgnoredAny>),
    }
    #[derive(serde::Deserialize)]
    struct Model {
        vocab: Vocabulary,
    }
    #[derive(serde::Deserialize)]
    struct Added {
        id: u32,
    }
    #[derive(serde::Deserialize)]
    struct Tokenizer {
        model: Model,
        #[serde(default)]
        added_tokens: Vec<Added>,
    }
    let text = fs::read(&file).map_err(|source| DataError::io(&file, NEEDS, source))?;
    let read = serde_json::from_slice::<Tokenizer>(&text);
    let tokenizer =
        read.map_err(|error| DataError::NoTokenizer { file: file.clone(), problem: error.to_string() })?;
    let known = match tokenizer.model.vocab {
        Vocabulary::Named(tokens) => tokens.into_values().max().map_or(0, |greatest| u64::from(greatest) + 1),
        Vocabulary::Listed(tokens) => tokens.len() as u64,
    };
    let added = tokenizer.added_tokens.iter().map(|added| u64::from(added.id) + 1).max();
    match known.max(added.unwrap_or(0)) {
        vocabulary @ 2..=MOST => Ok(vocabulary as u32),
        vocabulary => Err(DataError::NoTokenizer {
            file,
            problem: format!("it has {vocabulary} tokens, and ids of u16 are 2 to {MOST}"),
        }),
    }
}

struct Tokens {
    ids: Arc<Ids>,
    windows: Windows,
    vocabulary: u32,
}

pub(crate) fn open(options: &TokensOptions) -> Result<Opened, DataError> {
    let &TokensOptions { ref path, ref val_path, context, val_split, .. } = options;
    let vocabulary = options.vocabulary()?;
    let (file, beside) = match path.is_dir() {
        true => (path.join("train.bin"), Some(path.join("val.bin"))),
        false => (path.clone(), None),
    };
    let ids = Arc::new(Ids::open(file)?);
    let val_ids = match (val_path, beside) {
        (Some(file), _) => Some(Ids::open(file.clone())?),
        (None, Some(file)) => match Ids::open(file) {
            Err(DataError::Missing { .. }) => None,
            opened => Some(opened?),
        },
        (None, None) => None,
    };
    let part = |ids: &Arc<Ids>, windows| -> Result<Arc<dyn Dataset>, DataError> {
        let part = Tokens { ids: Arc::clone(ids), windows, vocabulary };
        // What is wrong from the first sample on is found here, before a run begins.
        part.check(0)?;
        Ok(Arc::new(part))
    };
    let share = if val_ids.is_some() { 0.0 } else { val_split };
    let (train, held_out) = ids.sequence(context).split(share)?;
    let train = part(&ids, train)?;
    let val = match (val_ids.map(Arc::new), held_out) {
        (Some(val), _) => Some(part(&val, val.sequence(context).part("validation", 0..val.len())?)?),
        (None, Some(windows)) => Some(part(&ids, windows)?),
        (None, None) => None,
    };
    Ok(Opened { train, val, class_names: Vec::new(), preparation: None, groups: None, attribution: None })
}

impl Tokens {
    /// The ids of a sample, and the one after them.
    fn window(&self, index: u64) -> impl Iterator<Item = u32> + '_ {
        let places = self.windows.places(index);
        let (ids, _) = self.ids.bytes[places.start * WIDTH..places.end * WIDTH].as_chunks::<WIDTH>();
        ids.iter().map(|id| u32::from(u16::from_le_bytes(*id)))
    }

    /// *Errors*: an id of this sample is beyond the vocabulary.
    fn check(&self, index: u64) -> Result<(), DataError> {
        let vocabulary = self.vocabulary;
        let Some((place, id)) = self.window(index).enumerate().find(|(_, id)| *id >= vocabulary) else {
            return Ok(());
        };
        let position = (self.windows.places(index).start + place) as u64;
        Err(DataError::IdOutOfRange { file: self.ids.file.clone(), position, id, vocabulary })
    }
}

impl Dataset for Tokens {
    fn len(&self) -> u64 {
        self.windows.samples
    }

    fn spec(&self) -> SampleSpec {
        self.windows.spec(self.vocabulary)
    }

    fn read(&self, index: u64, _: Option<&Key>, sample: &mut SampleSlot<'_>) -> Result<(), DataError> {
        self.check(index)?;
        sample.tokens().iter_mut().zip(self.window(index)).for_each(|(token, id)| *token = id);
        let next = self.window(index).skip(1);
        sample.token_classes().iter_mut().zip(next).for_each(|(class, id)| *class = id);
        Ok(())
    }
}

/// A file of ids.
struct Ids {
    file: PathBuf,
    bytes: Mapping,
}

impl Ids {
    /// Maps a file.
    ///
    /// *Errors*: it is missing, unreadable, empty, compressed, an array with a header, or ends inside an id.
    fn open(file: PathBuf) -> Result<Self, DataError> {
        let system = |source| DataError::io(&file, NEEDS, source);
        let found = |found, instead| DataError::NotTokens { file: file.clone(), found, instead };
        let info = fs::metadata(&file).map_err(system)?;
        if !info.is_file() {
            return Err(found("no plain file", "give a plain file; only `path` may be a folder"));
        }
        // By its name: no first bytes are forbidden to a file without a header.
        if file.extension().is_some_and(|end| end == "gz") {
            return Err(found(
                "compressed",
                "unpack it with gunzip; files of token ids are mapped as they are",
            ));
        }
        if info.len() == 0 {
            return Err(DataError::Empty { file });
        }
        let bytes = File::open(&file).and_then(|opened| Mapping::of(&opened)).map_err(system)?;
        if bytes.starts_with(NUMPY_MAGIC) {
            let instead = "write it with `tofile`, which adds no header, as nanoGPT's prepare.py does";
            return Err(found("an array saved by numpy.save", instead));
        }
        if bytes.len() % WIDTH != 0 {
            return Err(DataError::HalfToken { file, bytes: bytes.len() as u64 });
        }
        Ok(Self { file, bytes })
    }

    fn len(&self) -> usize {
        self.bytes.len() / WIDTH
    }

    fn sequence(&self, context: usize) -> Sequence<'_> {
        Sequence { file: &self.file, length: self.len(), unit: "tokens", context }
    }
}
