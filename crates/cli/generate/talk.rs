//! A conversation with a model: what was said, and what of it the model is shown.
//!
//! It does not know what an answer is drawn from, nor where it is shown.

use crate::error::CliError;
use crate::report::amount;
use crate::run_tokenizer::{self, failed};
use crate::tokens::Tokens;
use dtrain_tokenizer::{ChatTemplate, Tokenizer, Turn};
use std::sync::Arc;

/// Turns, and the template that writes them.
pub struct Talk {
    tokenizer: Arc<Tokenizer>,
    vocabulary: u32,
    template: ChatTemplate,
    /// Tokens that the model sees at once.
    context: usize,
    /// What it is told before all else, of which nothing is forgotten.
    told: Vec<Turn>,
    /// Questions and answers by turns.
    turns: Vec<Turn>,
}

/// A question, as the model is shown it.
pub struct Asked {
    /// What its answer is written behind.
    pub prompt: Vec<u32>,
    /// How many questions before it, with their answers, there is no room for any more.
    pub forgotten: usize,
}

impl Talk {
    /// One with a model that sees so many tokens at once.
    ///
    /// *Errors*: its run has no template of conversations, or one that is none.
    pub fn new(tokens: &Tokens, context: usize, system: Option<&str>) -> Result<Self, CliError> {
        let template = match tokens {
            Tokens::Known(tokenizer, _) => ChatTemplate::of(tokenizer).map_err(|error| {
                let hint =
                    "it is the chat_template.jinja in the folder of the run, or in its tokenizer_config.json";
                CliError::usage(error.to_string()).hint(hint)
            })?,
            Tokens::Bytes | Tokens::Ids(_) => None,
        };
        let (Tokens::Known(tokenizer, vocabulary), Some(template)) = (tokens, template) else {
            let error = CliError::usage("the run has no template of conversations");
            let hint = "models learn to answer from what `dtrain tokenize --chat` makes; `dtrain generate --prompt TEXT` goes on with a text, and a chat_template.jinja in the folder of the run \
                        is one";
            return Err(error.hint(hint));
        };
        let told = system.map(|told| Turn::new("system", told)).into_iter().collect();
        let (tokenizer, vocabulary) = (Arc::clone(tokenizer), *vocabulary);
        Ok(Self { tokenizer, vocabulary, template, context, told, turns: Vec::new() })
    }

    /// Asks a question. What was said first is forgotten where the model would not see all of it, with so much room for an answer.
    ///
    /// *Errors*: the template does not take the turns, or writes nothing; a token that the model does not know; a question that is too long by itself where room is asked for. Then
    /// nothing was asked.
    pub fn ask(&mut self, question: String, room: usize) -> Result<Asked, CliError> {
        let question = Turn::new("user", question);
        for forgotten in 0..=self.turns.len() / 2 {
            let kept = &self.turns[2 * forgotten..];
            let turns = [&self.told[..], kept, std::slice::from_ref(&question)].concat();
            let written = self.template.prompt(&turns).map_err(|error| CliError::usage(error.to_string()))?;
            let prompt =
                run_tokenizer::encode(&self.tokenizer, "the question", written.as_bytes(), self.vocabulary)?;
            if prompt.is_empty() {
                let error = CliError::usage("the template of conversations writes nothing of a question");
                return Err(error.hint("it is the chat_template.jinja in the folder of the run"));
            }
            // By itself a question has what room it leaves.
            let needed = if kept.is_empty() { room.min(1) } else { room };
            if room == 0 || prompt.len() + needed <= self.context {
                self.turns.drain(..2 * forgotten);
                self.turns.push(question);
                return Ok(Asked { prompt, forgotten });
            }
            if kept.is_empty() {
                let (tokens, context) = (amount(prompt.len() as u64, "token"), self.context);
                let error = CliError::usage(format!(
                    "the question has {tokens} with what is written around it, and the model sees {context}"
                ));
                return Err(
                    error.hint("ask a shorter one; data.context of its training is what a model sees")
                );
            }
        }
        unreachable!("without what was said before a question is asked, or too long")
    }

    /// What was answered, which is told.
    ///
    /// *Errors*: of the tokenizer.
    pub fn answered(&mut self, answer: &[u32]) -> Result<String, CliError> {
        let answer = self.tokenizer.decode(answer).map_err(|error| failed(&error))?;
        self.turns.push(Turn::new("assistant", answer.clone()));
        Ok(answer)
    }

    /// Begins anew.
    pub fn forget(&mut self) {
        self.turns.clear();
    }
}
