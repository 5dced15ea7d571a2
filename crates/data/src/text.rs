//! A text as a stream of bytes, cut into windows: sample `i` reads `context` bytes from `i * context` and predicts
//! the byte after each.
//!
//! Windows do not overlap, so an epoch reads each byte once. Bytes after the last full window of a part are not
//! used. It does not know words, lines or encodings.

use crate::bytes::Bytes;
use crate::split::held_out_count;
use crate::{DataError, Dataset, InputSpec, Opened, SampleSlot, SampleSpec, TargetSpec};
use dtrain_types::Key;
use std::path::PathBuf;
use std::sync::Arc;

const NEEDS: &str = "kind text needs `path`, a file of text (plain or gzip)";
/// Every byte is a token.
const VOCABULARY: u32 = 256;

/// Which text, and how it is cut.
#[derive(Clone, Debug, PartialEq)]
pub struct TextOptions {
    /// The file, plain or gzip.
    pub path: PathBuf,
    /// Bytes in one sample.
    pub context: usize,
    /// The share at the end that is held out for validation; 0 is none.
    pub val_split: f64,
}

impl TextOptions {
    /// Windows of 128 bytes, the last tenth held out.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), context: 128, val_split: 0.1 }
    }
}

struct Windows {
    text: Arc<Bytes>,
    first: usize,
    samples: u64,
    context: usize,
}

pub(crate) fn open(options: &TextOptions) -> Result<Opened, DataError> {
    let &TextOptions { ref path, context, val_split } = options;
    if context == 0 {
        return Err(DataError::Option { option: "context", got: "0".into(), expected: "at least 1" });
    }
    let text = Arc::new(Bytes::open(path, NEEDS)?);
    let bytes = text.len() as u64;
    if bytes == 0 {
        return Err(DataError::Empty { file: path.clone() });
    }
    let held_out = held_out_count(val_split, bytes)?;
    let kept = (bytes - held_out) as usize;
    let part = |part, first: usize, bytes: usize| -> Result<Arc<dyn Dataset>, DataError> {
        let samples = (bytes.saturating_sub(1) / context) as u64;
        if samples == 0 {
            let needed = context as u64 + 1;
            return Err(DataError::TextTooShort { file: path.clone(), part, bytes: bytes as u64, needed });
        }
        Ok(Arc::new(Windows { text: Arc::clone(&text), first, samples, context }))
    };
    let train = part("training", 0, kept)?;
    let val = if held_out > 0 { Some(part("validation", kept, held_out as usize)?) } else { None };
    Ok(Opened { train, val, class_names: Vec::new(), attribution: None })
}

impl Dataset for Windows {
    fn len(&self) -> u64 {
        self.samples
    }

    fn spec(&self) -> SampleSpec {
        SampleSpec {
            input: InputSpec::Tokens { length: self.context, vocabulary: VOCABULARY },
            target: TargetSpec::ClassPerToken { classes: VOCABULARY },
        }
    }

    fn read(&self, index: u64, _: Option<&Key>, sample: &mut SampleSlot<'_>) -> Result<(), DataError> {
        assert!(index < self.samples, "sample {index} of {}", self.samples);
        let start = self.first + index as usize * self.context;
        let window = &self.text[start..=start + self.context];
        sample.tokens().iter_mut().zip(window).for_each(|(token, byte)| *token = u32::from(*byte));
        sample
            .token_classes()
            .iter_mut()
            .zip(&window[1..])
            .for_each(|(class, byte)| *class = u32::from(*byte));
        Ok(())
    }
}
