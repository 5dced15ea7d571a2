//! Texts that a trained model goes on with, token by token.
//!
//! `scribe.rs` asks the model for what comes next, `sampling.rs` chooses of that, `page.rs` shows it. A text depends on the prompt, the
//! seed and its own number alone, whoever writes it and whatever else is written.

mod page;
mod sampling;
mod scribe;

pub use page::{Page, Tokens};
pub use sampling::Sampling;
pub use scribe::{Scribe, Text, Wanted};
