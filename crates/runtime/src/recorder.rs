//! Writes down what the supervisor was told and what it answered, where somebody asked for it: `DTRAIN_TRANSCRIPT=FILE`.
//!
//! For the investigation of a run: the transcript can be told again to the machine alone, or to the simulator's. Its
//! file is written as things happen; a slow disk slows the supervisor down. Without the variable nothing is done.

use dtrain_protocol::{Input, SupervisorConfig, SupervisorEffect, transcript};
use dtrain_types::Instant;
use std::fs::File;
use std::io::Write;

/// The variable that names the file.
pub const TRANSCRIPT_VARIABLE: &str = "DTRAIN_TRANSCRIPT";

/// The transcript of one run, if it is wanted.
#[derive(Debug)]
pub struct Recorder(Option<File>);

impl Recorder {
    /// Begins the transcript that the environment asks for.
    #[must_use]
    pub fn from_environment(config: &SupervisorConfig) -> Self {
        let Some(path) = std::env::var_os(TRANSCRIPT_VARIABLE) else { return Self(None) };
        let begun = File::create(&path).and_then(|mut file| {
            file.write_all(&transcript::head(config))?;
            Ok(file)
        });
        match begun {
            Ok(file) => Self(Some(file)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "there will be no transcript");
                Self(None)
            }
        }
    }

    /// Writes an input with its effects.
    pub fn record(&mut self, now: Instant, input: Input, effects: &[SupervisorEffect]) {
        let Some(file) = &mut self.0 else { return };
        let line = transcript::Line::new(now, input, effects);
        if let Err(error) = file.write_all(&transcript::line(&line)) {
            tracing::warn!(%error, "the transcript ends here");
            self.0 = None;
        }
    }

    /// Whether anybody wants to know.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }
}
