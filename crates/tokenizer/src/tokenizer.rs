//! A tokenizer: its file, its vocabulary, short texts.

use crate::error::TokenizerError;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// What ends a text, by the names that models have for it, those of GPT-2 and Llama first.
const ENDS: [&str; 6] = ["<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>", "<eos>", "[EOS]"];

/// What lies beside a `tokenizer.json` and says which of its tokens ends a text, among much else.
pub const SETTINGS: &str = "tokenizer_config.json";
/// What a template of conversations beside it is called; without one it is in the settings.
pub const TEMPLATE: &str = "chat_template.jinja";
/// Where it says that.
const END: &str = "eos_token";

/// Turns texts into token ids and back. Threads may share it.
pub struct Tokenizer {
    pub(crate) inner: tokenizers::Tokenizer,
    /// The file, as it was or will be.
    bytes: Vec<u8>,
    vocabulary: u32,
    /// The file beside it, where there is one that is understood.
    settings: Option<Vec<u8>>,
    /// The template of conversations beside it, where there is one.
    template: Option<String>,
    /// What ends a text.
    end: Option<(String, u32)>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads a `tokenizer.json`, and what lies beside it: [`SETTINGS`] and a [`TEMPLATE`]. *Blocks* on the disk.
    ///
    /// *Errors*: it cannot be read, or is something else.
    pub fn open(file: &Path) -> Result<Self, TokenizerError> {
        let bytes =
            fs::read(file).map_err(|source| TokenizerError::Unreadable { file: file.to_owned(), source })?;
        let other = |problem: String| TokenizerError::Other { file: file.to_owned(), problem };
        let opened = Self::of(bytes).map_err(|error| match error {
            TokenizerError::Fails(problem) => other(problem),
            error => error,
        })?;
        let opened = match fs::read(file.with_file_name(SETTINGS)) {
            Ok(settings) => opened.with_settings(settings),
            Err(_) => opened,
        };
        let template = file.with_file_name(TEMPLATE);
        match fs::read_to_string(&template) {
            Ok(text) => Ok(opened.with_template(text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(opened),
            Err(source) => Err(TokenizerError::Unreadable { file: template, source }),
        }
    }

    /// The same with a template of conversations of its own.
    #[must_use]
    pub fn with_template(self, template: String) -> Self {
        Self { template: Some(template), ..self }
    }

    fn with_settings(mut self, settings: Vec<u8>) -> Self {
        let Ok(read @ Value::Object(_)) = serde_json::from_slice(&settings) else { return self };
        self.settings = Some(settings);
        let name = match &read[END] {
            Value::String(name) => name,
            // With how it is cut out of a text.
            Value::Object(token) => token.get("content").and_then(Value::as_str).unwrap_or_default(),
            Value::Null if read.get(END).is_some() => {
                self.end = None;
                return self;
            }
            _ => return self,
        };
        if let Some(id) = self.id(name) {
            self.end = Some((name.to_owned(), id));
        }
        self
    }

    /// The same where this token ends a text, or none does; nothing if there is no such token.
    #[must_use]
    pub fn ending_with(self, end: Option<&str>) -> Option<Self> {
        let end = end.map(|name| Some((name.to_owned(), self.id(name)?)));
        let end = if end == Some(None) { return None } else { end.flatten() };
        let read = self.settings.as_deref().and_then(|settings| serde_json::from_slice(settings).ok());
        let mut settings: Value =
            read.unwrap_or_else(|| json!({"tokenizer_class": "PreTrainedTokenizerFast"}));
        settings[END] = json!(end.as_ref().map(|(name, _)| name));
        Some(Self { settings: Some(format!("{settings:#}\n").into_bytes()), end, ..self })
    }

    /// That of a file's bytes.
    pub(crate) fn of(bytes: Vec<u8>) -> Result<Self, TokenizerError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(&bytes).map_err(fails)?;
        // What a file says of batches is for those who feed a model with it: a text has all of its tokens.
        inner.with_truncation(None).map_err(fails)?;
        inner.with_padding(None);
        let vocabulary = inner.get_vocab(true).into_values().max().map_or(0, |greatest| greatest + 1);
        match vocabulary {
            0 => Err(TokenizerError::Fails("it has no tokens".into())),
            vocabulary => {
                let usual = |name: &str| Some((name.to_owned(), inner.token_to_id(name)?));
                let end = ENDS.into_iter().find_map(usual);
                Ok(Self { inner, bytes, vocabulary, settings: None, template: None, end })
            }
        }
    }

    /// What the file holds, byte by byte.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What the [`SETTINGS`] hold or will hold, if there are some.
    #[must_use]
    pub fn settings(&self) -> Option<&[u8]> {
        self.settings.as_deref()
    }

    /// The template of conversations beside it ([`TEMPLATE`]), if there is one.
    #[must_use]
    pub fn template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// How many ids there are: each is below this.
    #[must_use]
    pub fn vocabulary(&self) -> u32 {
        self.vocabulary
    }

    /// The id of a token by its name.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token that ends a text, if there is one, by the settings or else by any of the usual names: its name and id.
    #[must_use]
    pub fn end_of_text(&self) -> Option<(&str, u32)> {
        self.end.as_ref().map(|(name, id)| (name.as_str(), *id))
    }

    /// The tokens of a text, without those that some models want around it.
    ///
    /// *Errors*: of the tokenizer, as of a text with a character that it has no token for.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        Ok(self.inner.encode_fast(text, false).map_err(fails)?.get_ids().to_vec())
    }

    /// The text of tokens; what is no text in it is replaced.
    ///
    /// *Errors*: of the tokenizer.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.inner.decode(ids, false).map_err(fails)
    }
}

pub(crate) fn fails(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Fails(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_a_text_is_what_the_settings_beside_the_file_say() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer.json");
        let words = r#"{"a": 0, "</s>": 1, "stop": 2}"#;
        let text = format!(
            r#"{{"version": "1.0", "model": {{"type": "WordLevel", "unk_token": "a", "vocab": {words}}}}}"#
        );
        fs::write(&file, text).unwrap();
        let end = || Tokenizer::open(&file).unwrap().end_of_text().map(|(name, id)| (name.to_owned(), id));
        let (usual, stop) = (Some(("</s>".to_owned(), 1)), Some(("stop".to_owned(), 2)));
        assert_eq!(end(), usual);
        for (settings, expected) in [
            (r#"{"eos_token": "stop", "model_max_length": 512}"#, &stop),
            (r#"{"eos_token": {"content": "stop", "lstrip": false}}"#, &stop),
            (r#"{"eos_token": null}"#, &None),
            (r#"{"eos_token": "unknown"}"#, &usual),
            (r#"{"eos_token": 3}"#, &usual),
            (r#"{"bos_token": "a"}"#, &usual),
            ("[]", &usual),
            ("{", &usual),
        ] {
            fs::write(folder.path().join(SETTINGS), settings).unwrap();
            assert_eq!(end(), *expected, "{settings}");
            let kept = Tokenizer::open(&file).unwrap().settings().is_some();
            assert_eq!(kept, settings.ends_with('}'), "{settings}");
        }
        // What is chosen is written so, with what else is said.
        fs::write(folder.path().join(SETTINGS), r#"{"eos_token": "a", "model_max_length": 512}"#).unwrap();
        for (name, expected) in [(Some("stop"), &stop), (None, &None)] {
            let chosen = Tokenizer::open(&file).unwrap().ending_with(name).unwrap();
            assert_eq!(chosen.end_of_text().map(|(name, id)| (name.to_owned(), id)), *expected);
            fs::write(folder.path().join(SETTINGS), chosen.settings().unwrap()).unwrap();
            assert_eq!(end(), *expected);
            assert!(String::from_utf8_lossy(chosen.settings().unwrap()).contains("512"));
        }
        assert!(Tokenizer::open(&file).unwrap().ending_with(Some("unknown")).is_none());
    }

    #[test]
    fn what_is_no_tokenizer_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer.json");
        let said = || Tokenizer::open(&file).err().unwrap().to_string();
        assert!(said().contains("cannot read"), "{}", said());
        for text in ["", "{", "[1, 2]", r#"{"model": 3}"#] {
            fs::write(&file, text).unwrap();
            assert!(
                said().contains("tokenizer.json is no tokenizer of Hugging Face: "),
                "{text}: {}",
                said()
            );
        }
    }
}
