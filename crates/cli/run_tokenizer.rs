//! The tokenizer of a run: it lay beside the ids that the model was trained on, and goes with the model from there on.

use crate::config::{Config, folder_of};
use crate::error::CliError;
use crate::run_folder::RunFolder;
use crate::whole_file::WholeFile;
use dtrain_data::{Source, TOKENIZER};
use dtrain_tokenizer::{SETTINGS, TEMPLATE, Tokenizer, TokenizerError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Copies the tokenizer that lies beside the ids of a run into its folder, or that of the run whose model it begins with, unless it has one.
///
/// *Errors*: of the disk.
pub fn keep(run: &RunFolder, config: &Config, parent: Option<&RunFolder>) -> Result<(), CliError> {
    let Some(Source::Tokens(ids)) = &config.data else { return Ok(()) };
    let from = ids.tokenizer().or_else(|| file_of(parent?));
    let Some(from) = from.filter(|_| !run.path.join(TOKENIZER).exists()) else { return Ok(()) };
    for (name, from) in files(&from) {
        let bytes = std::fs::read(&from)
            .map_err(|error| CliError::usage(format!("cannot read {}", from.display())).because(&error))?;
        let mut file = WholeFile::create(&run.path.join(name))?;
        file.write(&bytes)?;
        file.finish()?;
    }
    Ok(())
}

/// What tells one tokenizer from another: words, numbers, and what they make of spaces and of letters beyond ASCII.
const PROBE: &str = "The quick brown fox, 1234 times over\n    the lazy dog's \u{e4}\u{e9}\u{4e2d}.";

/// What is to be said where the ids of a run were made by another tokenizer than that of the model that it begins with: what that has learnt of
/// its tokens says nothing of these.
///
/// *Blocks* on the disk.
#[must_use]
pub fn note_of_another(config: &Config) -> Option<String> {
    let Some(Source::Tokens(ids)) = &config.data else { return None };
    let folder = folder_of(config.beginning.file.as_deref()?);
    let (ours, theirs) = (ids.tokenizer()?, folder.join(TOKENIZER));
    if std::fs::read(&ours).ok()? == std::fs::read(&theirs).ok()? {
        return None;
    }
    let tokens = |file: &Path| Tokenizer::open(file).ok()?.encode(PROBE).ok();
    (tokens(&ours)? != tokens(&theirs)?).then(|| {
        let shown = folder.display();
        format!(
            "the ids were made by another tokenizer than that of the model in {shown}; `dtrain tokenize -t {shown}` makes them by its own"
        )
    })
}

/// A tokenizer, and what lies beside it and says which token ends a text and how conversations are written, if that is there: the tokenizer comes last.
pub fn files(tokenizer: &Path) -> impl Iterator<Item = (&'static str, PathBuf)> {
    let beside = [SETTINGS, TEMPLATE].map(|name| (name, tokenizer.with_file_name(name)));
    let beside = beside.into_iter().filter(|(_, file)| file.is_file());
    beside.chain([(TOKENIZER, tokenizer.to_owned())])
}

/// Where the tokenizer of a run is, if it has one.
#[must_use]
pub fn file_of(run: &RunFolder) -> Option<PathBuf> {
    Some(run.path.join(TOKENIZER)).filter(|file| file.is_file())
}

/// The tokenizer of a run, if it has one.
///
/// *Errors*: it cannot be read, or is none. *Blocks* on the disk.
pub fn of(run: &RunFolder) -> Result<Option<Arc<Tokenizer>>, CliError> {
    file_of(run).map(|file| Ok(Arc::new(open(&file)?))).transpose()
}

/// Opens a `tokenizer.json`, or that of a folder.
///
/// *Errors*: it cannot be read, or is none. *Blocks* on the disk.
pub fn open(path: &Path) -> Result<Tokenizer, CliError> {
    let file = if path.is_dir() { path.join(TOKENIZER) } else { path.to_owned() };
    Tokenizer::open(&file).map_err(|error| {
        let hint = match &error {
            TokenizerError::Unreadable { .. } => "give a tokenizer.json of Hugging Face, or a folder that has one",
            _ => "a tokenizer.json is written by `save_pretrained` of a fast tokenizer, or by `dtrain tokenize --vocabulary N`",
        };
        CliError::usage(error.to_string()).hint(hint)
    })
}

/// The tokens of a text, which `what` names to people, for a model that knows those below `vocabulary`.
///
/// *Errors*: it is no UTF-8; the tokenizer has tokens that the model does not know.
pub fn encode(tokenizer: &Tokenizer, what: &str, text: &[u8], vocabulary: u32) -> Result<Vec<u32>, CliError> {
    let text =
        std::str::from_utf8(text).map_err(|_| CliError::usage(format!("{what} is no text of UTF-8")))?;
    let tokens = tokenizer.encode(text).map_err(|error| failed(&error))?;
    check_known(what, &tokens, vocabulary)?;
    Ok(tokens)
}

/// *Errors*: among the tokens of what is called so is one that a model does not know, which knows those below `vocabulary`.
pub fn check_known(what: &str, tokens: &[u32], vocabulary: u32) -> Result<(), CliError> {
    let Some(token) = tokens.iter().find(|token| **token >= vocabulary) else { return Ok(()) };
    let message = format!("{what} has token {token}, and the model knows those below {vocabulary}");
    Err(CliError::usage(message).hint("the tokenizer.json of the run is not the one that made its ids"))
}

/// A tokenizer that fails at its work.
#[must_use]
pub fn failed(error: &TokenizerError) -> CliError {
    CliError::failed(error.to_string())
}
