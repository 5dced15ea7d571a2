//! A text as a stream of bytes, cut into windows.
//!
//! It does not know words, lines or encodings.

use crate::bytes::Bytes;
use crate::windows::{Sequence, Windows};
use crate::{DataError, Dataset, Opened, SampleSlot, SampleSpec};
use dtrain_types::Key;
use std::path::PathBuf;
use std::sync::Arc;

const NEEDS: &str = "kind text needs `path`, a file of text (plain, .gz or .zst)";
/// Every byte is a token.
const VOCABULARY: u32 = 256;

/// Which text, and how it is cut.
#[derive(Clone, Debug, PartialEq)]
pub struct TextOptions {
    /// The file, plain, .gz or .zst.
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

struct Text {
    bytes: Arc<Bytes>,
    windows: Windows,
}

pub(crate) fn open(options: &TextOptions) -> Result<Opened, DataError> {
    let &TextOptions { ref path, context, val_split } = options;
    let bytes = Arc::new(Bytes::open(path, NEEDS)?);
    if bytes.is_empty() {
        return Err(DataError::Empty { file: path.clone() });
    }
    let sequence = Sequence { file: path, length: bytes.len(), unit: "bytes", context };
    let (train, val) = sequence.split(val_split)?;
    let part = |windows| -> Arc<dyn Dataset> { Arc::new(Text { bytes: Arc::clone(&bytes), windows }) };
    Ok(Opened {
        train: part(train),
        val: val.map(part),
        class_names: Vec::new(),
        preparation: None,
        groups: None,
        examples: None,
        attribution: None,
    })
}

impl Dataset for Text {
    fn len(&self) -> u64 {
        self.windows.samples
    }

    fn spec(&self) -> SampleSpec {
        self.windows.spec(VOCABULARY)
    }

    fn read(&self, index: u64, _: Option<&Key>, sample: &mut SampleSlot<'_>) -> Result<(), DataError> {
        let window = &self.bytes[self.windows.places(index)];
        sample.tokens().iter_mut().zip(window).for_each(|(token, byte)| *token = u32::from(*byte));
        sample
            .token_classes()
            .iter_mut()
            .zip(&window[1..])
            .for_each(|(class, byte)| *class = u32::from(*byte));
        Ok(())
    }
}
