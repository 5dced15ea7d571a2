//! Ids that are wanted for a while, of a file that says by itself what it is.

use super::conversations::{at, of_conversations};
use super::files::is_read_once;
use super::texts::of_texts;
use crate::arguments::FIELD;
use crate::error::CliError;
use crate::report::Voice;
use crate::run_tokenizer;
use crate::trained::Trained;
use dtrain_data::{DataError, Records, Source, TokensOptions, plain_name};
use dtrain_tokenizer::Conversation;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The ids of a text, a `.jsonl`, `.json` or Parquet file of texts or of conversations, with the folder that is there as long as they are needed; none where no tokenizer of the run says what they
/// are, or the file is one of ids (`.bin`).
///
/// *Errors*: of the text, by file and line; of the disk. *Blocks* to the end.
pub fn ids_in_passing(
    trained: &Trained,
    path: &Path,
    voice: Voice,
) -> Result<Option<(TempDir, PathBuf)>, CliError> {
    let is_ids = path.extension().is_some_and(|end| end == "bin");
    let (Some(Source::Tokens(TokensOptions { vocabulary, .. })), false) = (&trained.config.data, is_ids)
    else {
        return Ok(None);
    };
    let Some(tokenizer) = run_tokenizer::of(&trained.run)? else { return Ok(None) };
    let folder = tempfile::tempdir();
    let folder =
        folder.map_err(|error| CliError::failed("cannot make a temporary folder").because(&error))?;
    let to = folder.path().join("ids.bin");
    let end = tokenizer.end_of_text().map(|(_, id)| id);
    // As they are read: by the vocabulary of the model.
    let vocabulary = vocabulary.unwrap_or(tokenizer.vocabulary());
    let files = [path.to_owned()];
    let made = match is_of_conversations(path)? {
        true => of_conversations(&to, (&tokenizer, vocabulary), &files, voice),
        false => of_texts(&to, (&tokenizer, end, vocabulary), &files, FIELD, voice),
    };
    let shown = |name: &Path| name.display().to_string();
    made.map_err(|error| error.renaming(&shown(&to), &shown(path)))?.0.finish()?;
    Ok(Some((folder, to)))
}

/// Whether the first record of a file of records is a conversation, and no text.
///
/// *Errors*: it is a conversation with something wrong, or nothing at all.
fn is_of_conversations(path: &Path) -> Result<bool, CliError> {
    let name = path.to_string_lossy().to_lowercase();
    let name = plain_name(&name);
    let has_records = [".jsonl", ".ndjson", ".json", ".parquet"].iter().any(|end| name.ends_with(end));
    if !has_records || is_read_once(path) {
        return Ok(false);
    }
    let records = match Records::open(path) {
        // It may be a text that happens to be JSON.
        Err(DataError::NoDocument { .. }) if name.ends_with(".json") => return Ok(false),
        records => records?,
    };
    let Some((line, object)) = { records }.next().transpose()? else { return Ok(false) };
    if object.contains_key(FIELD) {
        return Ok(false);
    }
    match Conversation::of(&object) {
        Ok(_) => Ok(true),
        Err(problem) if TURNS.iter().any(|key| object.contains_key(*key)) => Err(at(path, line, &problem)),
        Err(_) => Ok(false),
    }
}

/// Where a conversation has its turns.
const TURNS: [&str; 2] = ["messages", "conversations"];
