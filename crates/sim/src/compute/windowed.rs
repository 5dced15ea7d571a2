//! A pass over windows as far as it came, and what it is over. What is done with it is in `rounds.rs`.

use dtrain_collective::Take;
use dtrain_engine::EvaluationCounts;
use dtrain_rounds::Rounds;
use dtrain_types::{MicroRange, Step, StepPlan, Trailer};

/// A pass over windows, as far as it came.
#[derive(Debug)]
pub(super) struct Windowed {
    pub pass: Pass,
    /// What its exchanges came to, one after the other.
    pub heard: Vec<Vec<f32>>,
    /// What is taken in the exchange that is under way.
    pub takes: Option<Take>,
}

/// What is passed over.
#[derive(Clone, Debug)]
pub(super) enum Pass {
    /// A round of a step.
    Round { plan: StepPlan, number: u32, trailers: Vec<Trailer> },
    /// What all ranks say of the micro-batches of a step, which is computed.
    Trailers,
    /// A micro-batch of a validation, or what is over for others.
    Validation(Validation),
}

/// A validation, as far as it came.
#[derive(Clone, Debug)]
pub(super) struct Validation {
    pub step: Step,
    /// What this rank evaluates.
    pub range: MicroRange,
    /// How many micro-batches of it are behind it, or would be if it had as many as others.
    pub number: u32,
    /// The most that a rank has.
    pub most: u32,
    pub trailers: Vec<Trailer>,
    pub counts: EvaluationCounts,
}

/// What only a broken promise keeps ([`Sabotage`](crate::sabotage::Sabotage)).
#[derive(Debug, Default)]
pub(super) struct Relics {
    /// The rounds of a generation before.
    pub rounds: Option<Rounds>,
    /// A window of parameters that was brought before.
    pub window: Option<Vec<f32>>,
    /// The step that was left, behind so many rounds.
    pub left: Option<(Step, u32, Vec<Trailer>)>,
}

impl Pass {
    /// The step whose parameters it reads.
    pub fn reads(&self) -> Step {
        match self {
            Self::Round { plan, .. } => Step(plan.step.0 - 1),
            Self::Validation(of) => of.step,
            Self::Trailers => Step(0),
        }
    }
}

impl Windowed {
    /// One that is to begin.
    pub fn new(pass: Pass) -> Box<Self> {
        Box::new(Self { pass, heard: Vec::new(), takes: None })
    }
}
