//! What a supervisor is told of the life before it.

use crate::cause::Ending;
use dtrain_types::{NodeId, Step};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a supervisor finds of the life before it, which has ended in the middle of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenOver {
    /// All steps up to this one are written down.
    pub recorded: Step,
    /// The books go on to this step: those behind `recorded` are missing in other files alone.
    pub booked: Step,
    /// All validations up to this step are; 0 is none.
    pub validated: Step,
    /// The step after which the run ends, where that validation was enough.
    pub enough: Option<Step>,
    /// What the run ended with, where it had ended: then nothing is left but to tell whoever has not heard it.
    pub ending: Option<Ending>,
    /// Which nodes were let in, as far as it is known: a run may have begun without some of them.
    pub nodes: BTreeSet<NodeId>,
    /// The node whose host led before, where this life leads from another one: that host may be gone with its supervisor.
    pub vacant: Option<NodeId>,
}
