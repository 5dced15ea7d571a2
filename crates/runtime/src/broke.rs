//! Why an order to the compute thread was not carried out to its end, in the words of those that it comes from.

use dtrain_collective::CollectiveError;
use dtrain_data::DataError;
use dtrain_engine::EngineError;
use dtrain_protocol::Failure;
use dtrain_rounds::RoundsError;
use std::any::Any;

/// Why an order was not carried out to its end.
pub enum Broke {
    /// The collectives broke off, nearly always because of somebody else's death, or the generation is over.
    Off(String),
    /// This rank cannot go on.
    Failed(Failure),
}

impl From<Failure> for Broke {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<RoundsError> for Broke {
    fn from(error: RoundsError) -> Self {
        match error {
            RoundsError::Exchange(error) => off(error),
            RoundsError::Engine(error) => engine(error).into(),
        }
    }
}

pub fn off(error: CollectiveError) -> Broke {
    Broke::Off(error.to_string())
}

pub fn told_to_leave() -> Broke {
    Broke::Off("the generation is over".into())
}

pub fn data(error: DataError) -> Failure {
    Failure::Data(format!("{error} ({})", error.hint()))
}

pub fn engine(error: EngineError) -> Failure {
    match error {
        EngineError::External(words) => Failure::Program(words),
        error => Failure::Engine(error.to_string()),
    }
}

/// What a panic said.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}
