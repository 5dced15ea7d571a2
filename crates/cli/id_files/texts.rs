//! Texts into ids, one document after the other, however long they are.

use super::files::{IdFiles, Written, bar};
use crate::error::CliError;
use crate::report::Voice;
use crate::run_tokenizer::{self, failed};
use crate::whole_file::WholeFile;
use dtrain_data::{DataError, IdWidth, TextPart, Texts};
use dtrain_tokenizer::{Encoder, Tokenizer};
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};

/// Writes the ids of files, which are not finished then, for a model of such a vocabulary.
pub fn of_texts(
    path: &Path,
    (tokenizer, end, vocabulary): (&Tokenizer, Option<u32>, u32),
    files: &[PathBuf],
    field: &str,
    voice: Voice,
) -> Result<(IdFiles, Written), CliError> {
    let mut file = WholeFile::create(path)?;
    let mut written = Written::default();
    let bar = bar(files, voice);
    let mut encoder = Encoder::new(tokenizer, end);
    let what = files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ");
    let mut bytes = Vec::new();
    let mut add = |ids: Vec<u32>, written: &mut Written| {
        run_tokenizer::check_known(&what, &ids, vocabulary)?;
        written.tokens += ids.len() as u64;
        bytes.clear();
        IdWidth::of(vocabulary).write(&ids, &mut bytes);
        file.write(&bytes)
    };
    for part in Parts::new(files, field, &bar) {
        match part? {
            TextPart::Text(text) => {
                written.bytes += text.len() as u64;
                encoder.put(&text)
            }
            TextPart::End => {
                written.texts += 1;
                encoder.end()
            }
        }
        .map_err(|error| failed(&error))?;
        add(encoder.take(), &mut written)?;
    }
    add(encoder.finish().map_err(|error| failed(&error))?, &mut written)?;
    bar.finish_and_clear();
    match written.tokens {
        0 => Err(CliError::usage(format!("there is no text for {}", path.display()))),
        _ => Ok((IdFiles { ids: file, mask: None }, written)),
    }
}

/// The documents of files, one file after the other, with a bar that says how far they are.
pub struct Parts<'a> {
    files: std::slice::Iter<'a, PathBuf>,
    field: &'a str,
    open: Option<Texts>,
    bar: &'a ProgressBar,
    /// Bytes of the files before.
    before: u64,
}

impl<'a> Parts<'a> {
    /// Those of files.
    pub fn new(files: &'a [PathBuf], field: &'a str, bar: &'a ProgressBar) -> Self {
        Self { files: files.iter(), field, open: None, bar, before: 0 }
    }
}

impl Iterator for Parts<'_> {
    type Item = Result<TextPart, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let open = match &mut self.open {
                Some(open) => open,
                none => match Texts::open(self.files.next()?, self.field) {
                    Ok(opened) => none.insert(opened),
                    Err(error) => return Some(Err(error)),
                },
            };
            if let Some(part) = open.next() {
                self.bar.set_position(self.before + open.read());
                return Some(part);
            }
            self.before += open.size().unwrap_or(0);
            self.open = None;
        }
    }
}
