//! What turns texts into token ids and ids into texts: a `tokenizer.json` of Hugging Face, or a new one learnt from texts.
//!
//! The work is that of the crate `tokenizers`; what is here is what a trainer asks of it: a long text in pieces with the ids of the
//! whole (`encoder.rs`), a text shown as its tokens come (`shown.rs`), a vocabulary of one's own (`learn.rs`), conversations as a model
//! wants them written (`chat.rs`, by the crate `hf-chat-template`), and which of their tokens are learnt (`conversation.rs`).
//!
//! It does not know where texts come from, nor files of ids.

mod chat;
mod conversation;
mod encoder;
mod error;
mod learn;
mod shown;
mod tokenizer;

pub use chat::{ChatTemplate, Part, Text, Turn};
pub use conversation::{ChatEncoder, Conversation, Example};
pub use encoder::Encoder;
pub use error::TokenizerError;
pub use learn::{FEWEST_TOKENS, learn};
pub use shown::Shown;
pub use tokenizer::{SETTINGS, TEMPLATE, Tokenizer};
