//! Texts and conversations into files of token ids.
//!
//! `texts.rs` has documents, each token of which is learnt; `conversations.rs` those of which answers are, with a mask beside the ids. `in_passing.rs`
//! finds out which of both a file has. What is written where, and by which tokenizer, is for others to say.

mod conversations;
mod files;
mod in_passing;
mod texts;

pub use conversations::of_conversations;
pub use files::{Written, bar, is_read_once};
pub use in_passing::ids_in_passing;
pub use texts::{Parts, of_texts};
