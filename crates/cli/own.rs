//! What a program of one's own brings: its data and its model.

use dtrain_data::{DataError, Opened, SampleSpec};
use dtrain_engine::cpu::Cpu;
use dtrain_engine::stages::Chain;

/// The data and the model of a program of one's own: what `data.kind` and `model.kind` `own` mean.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    /// What the data is called: the name of its runs.
    pub name: &'static str,
    /// Opens the data.
    pub data: fn() -> Result<Opened, DataError>,
    /// Makes the model for samples like these.
    pub model: fn(&SampleSpec) -> Chain<Cpu>,
}
