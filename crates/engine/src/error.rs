//! What a user, a file or the data can cause in the engine. What only a bug can cause is an assertion.

use dtrain_types::Step;

/// Why the engine refuses.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// A stage does not fit its input; found when the model is planned.
    #[error("stage {stage} ({kind}): {reason}")]
    Stage {
        /// The stage's name in the model.
        stage: String,
        /// What it is.
        kind: &'static str,
        /// A sentence for people.
        reason: String,
    },
    /// A loss does not fit the model's output.
    #[error("loss: {0}")]
    Loss(String),
    /// An option has a value that makes no sense.
    #[error("{key}: {reason}")]
    Option {
        /// The option, as in the configuration.
        key: &'static str,
        /// A sentence for people.
        reason: String,
    },
    /// Batch norm met a single value per channel.
    #[error(
        "batch norm needs at least {needed} rows in a micro-batch, got {rows}: a single value has no variance"
    )]
    SingleValue {
        /// The least number of rows.
        needed: usize,
        /// Rows of the micro-batch.
        rows: usize,
    },
    /// A micro-batch has no row, or more than the replica was planned for.
    #[error("a micro-batch of {rows} rows, planned for 1 to {planned}")]
    Rows {
        /// Rows of the micro-batch.
        rows: usize,
        /// The greatest number planned for.
        planned: usize,
    },
    /// Inputs or targets are of another kind than the model takes: values for token ids, say.
    #[error("the model takes {expected}, got {got}")]
    Kind {
        /// What it takes.
        expected: &'static str,
        /// What came.
        got: &'static str,
    },
    /// Inputs or targets have the wrong length.
    #[error("{what}: expected {expected} values, got {got}")]
    Length {
        /// `inputs`, `targets`, or a section of the state.
        what: &'static str,
        /// The length the shape says.
        expected: usize,
        /// The length that came.
        got: usize,
    },
    /// A class id is not below the number of outputs.
    #[error("target {target} in row {row}, but the model has {classes} outputs")]
    Target {
        /// The class id.
        target: u32,
        /// Its row in the micro-batch.
        row: usize,
        /// Outputs of the model.
        classes: usize,
    },
    /// A token id is not below the size of the vocabulary.
    #[error("token {token} at place {place}, but the vocabulary has {vocabulary} tokens")]
    Token {
        /// The token id.
        token: u32,
        /// Its place in the micro-batch.
        place: usize,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// The reduced gradient of a step is not finite; nothing was changed.
    #[error("the gradient of step {step} is not finite")]
    NonFinite {
        /// The step.
        step: Step,
    },
    /// The device failed: it lost its memory, or its work ended in an error.
    #[error("the device failed: {0}")]
    Device(String),
    /// The program that makes the passes failed, in its own words.
    #[error("{0}")]
    External(String),
    /// The device has not so much memory left.
    #[error("{0}")]
    NoRoom(String),
}

/// Whether an option is at least 0 and below this.
///
/// *Errors*: [`EngineError::Option`].
pub(crate) fn within(key: &'static str, value: f32, most: f32) -> Result<(), EngineError> {
    let reason = format!("must be at least 0 and below {most}, got {value}");
    if (0.0..most).contains(&value) { Ok(()) } else { Err(EngineError::Option { key, reason }) }
}
