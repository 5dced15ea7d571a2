//! Token ids that a tokenizer wrote, cut into windows; or examples, where a mask beside them says where each begins (`examples.rs`).
//!
//! An id beyond the vocabulary is found when its sample is read. Of a tokenizer that lies beside them it knows how many ids it has, and not which
//! text an id stands for.

use crate::examples::{Cuts, Examples, Mask, Parts, mask_of};
use crate::ids::{IdWidth, Ids, NEEDS};
use crate::windows::Windows;
use crate::{DataError, Dataset, Opened, SampleSlot, SampleSpec};
use dtrain_types::Key;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

/// What a tokenizer of Hugging Face is called.
pub const TOKENIZER: &str = "tokenizer.json";
/// How many ids GPT-2 has.
const OF_GPT2: u32 = 50_257;
/// The most ids of a vocabulary.
pub const MOST_TOKENS: u32 = 1 << 24;

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
    /// Whether several examples share a sample, where a mask says where each begins.
    pub packing: bool,
}

impl TokensOptions {
    /// Windows of 128 tokens, the last tenth held out if there is no file for validation.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            val_path: None,
            context: 128,
            vocabulary: None,
            val_split: 0.1,
            packing: false,
        }
    }

    /// The tokenizer that made the ids, where it lies beside them: in their folder.
    #[must_use]
    pub fn tokenizer(&self) -> Option<PathBuf> {
        let folder = if self.path.is_dir() { &self.path } else { self.path.parent()? };
        Some(folder.join(TOKENIZER)).filter(|file| file.is_file())
    }

    /// How many ids there are, and what the files have of each.
    fn vocabulary(&self) -> Result<(u32, IdWidth), DataError> {
        let of = |vocabulary| (vocabulary, IdWidth::of(vocabulary));
        match (self.vocabulary, self.tokenizer()) {
            // A model may have some ids more than its tokenizer, which wrote the files.
            (Some(vocabulary), Some(file)) if IdWidth::of(vocabulary) == IdWidth::Four => {
                Ok((vocabulary, vocabulary_of(file).map_or(IdWidth::Four, IdWidth::of)))
            }
            (Some(vocabulary), _) => Ok(of(vocabulary)),
            (None, Some(file)) => vocabulary_of(file).map(of),
            (None, None) => Ok(of(OF_GPT2)),
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
    let vocabulary = known.max(added.unwrap_or(0));
    match u32::try_from(vocabulary) {
        Ok(vocabulary @ 2..=MOST_TOKENS) => Ok(vocabulary),
        _ => Err(DataError::NoTokenizer {
            file,
            problem: format!("it has {vocabulary} tokens, expected 2 to {MOST_TOKENS}"),
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
    let (vocabulary, width) = options.vocabulary()?;
    let (file, beside) = match path.is_dir() {
        true => (path.join("train.bin"), Some(path.join("val.bin"))),
        false => (path.clone(), None),
    };
    let ids = Arc::new(Ids::open(file, width)?);
    let val_ids = match (val_path, beside) {
        (Some(file), _) => Some(Ids::open(file.clone(), width)?),
        (None, Some(file)) => match Ids::open(file, width) {
            Err(DataError::Missing { .. }) => None,
            opened => Some(opened?),
        },
        (None, None) => None,
    };
    if let Some(mask) = Mask::beside(&ids)? {
        return examples(options, (ids, mask), val_ids.map(Arc::new), vocabulary);
    }
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
    Ok(Opened {
        train,
        val,
        class_names: Vec::new(),
        preparation: None,
        groups: None,
        examples: None,
        attribution: None,
    })
}

/// Those of ids with a mask.
fn examples(
    options: &TokensOptions,
    (ids, mask): (Arc<Ids>, Mask),
    val_ids: Option<Arc<Ids>>,
    vocabulary: u32,
) -> Result<Opened, DataError> {
    let cuts = Cuts { context: options.context, vocabulary, is_packed: options.packing };
    let share = if val_ids.is_some() { 0.0 } else { options.val_split };
    let Parts { train, val, counts } = Examples::split(&ids, mask, cuts, share)?;
    let val = match val_ids {
        None => val,
        Some(ids) => {
            let mask = Mask::beside(&ids)?.ok_or_else(|| DataError::NoMask {
                file: mask_of(ids.file()),
                problem: "it is not there, and the ids to train on have one".into(),
            })?;
            Some(Examples::split(&ids, mask, cuts, 0.0)?.train)
        }
    };
    train.check(0)?;
    val.as_ref().map_or(Ok(()), |val| val.check(0))?;
    let val = val.map(|val| Arc::new(val) as Arc<dyn Dataset>);
    Ok(Opened { val, examples: Some(counts), ..Opened::new(Arc::new(train)) })
}

impl Tokens {
    /// The ids of a sample, and the one after them.
    fn window(&self, index: u64) -> impl Iterator<Item = u32> + '_ {
        self.ids.at(self.windows.places(index))
    }

    /// *Errors*: an id of this sample is beyond the vocabulary.
    fn check(&self, index: u64) -> Result<(), DataError> {
        self.ids.check(self.windows.places(index), self.vocabulary)
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
