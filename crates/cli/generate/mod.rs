//! Texts that a trained model goes on with, token by token.
//!
//! `reader.rs` asks the model what comes next, `sampling.rs` chooses of that for `scribe.rs`, `page.rs` shows it. A text depends on the prompt, the
//! seed and its own number alone, whoever writes it and whatever else is written. `talk.rs` has what was said in a conversation.

mod page;
mod reader;
mod sampling;
mod scribe;
mod talk;

pub use page::Page;
pub use reader::texts_at_once;
pub use sampling::Sampling;
pub use scribe::{Scribe, Text, Wanted};
pub use talk::Talk;
