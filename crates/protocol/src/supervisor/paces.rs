//! How fast each member was seen to compute.

use dtrain_types::{MemberId, Step};
use std::collections::BTreeMap;

/// A pace counts after so many reports.
const KNOWN_AFTER: u32 = 16;

/// The doubling ends here.
const MOST_DOUBLINGS: u32 = 12;

/// The pace of every member that was seen.
#[derive(Debug, Default)]
pub(super) struct Paces {
    pub members: BTreeMap<MemberId, Pace>,
    /// Where the generation began.
    pub from: Step,
    /// How often speed has decided the ranges.
    pub cuts: u32,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// *Units*: seconds a micro-batch.
    pub seconds: f64,
    pub reports: u32,
    /// Reports in a row that speak against `slow`.
    pub against: u32,
    pub slow: bool,
}

impl Paces {
    /// A generation begins.
    pub fn begin(&mut self, from: Step) {
        self.from = from;
    }

    /// The ranges are cut anew because of speed.
    pub fn count_cut(&mut self) {
        self.cuts = (self.cuts + 1).min(MOST_DOUBLINGS);
    }

    pub fn known(&self, member: MemberId) -> Option<f64> {
        self.members.get(&member).filter(|pace| pace.reports >= KNOWN_AFTER).map(|pace| pace.seconds)
    }
}
