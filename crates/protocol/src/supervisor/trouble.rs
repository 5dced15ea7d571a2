//! Losses and breaks that are not over yet, as they are counted.

use dtrain_types::{Generation, Instant, MemberId, MicroRange, Step};
use std::collections::BTreeMap;

/// Losses and breaks that are not over yet.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// Members lost since the last step that was committed, and when.
    pub lost: Vec<(MemberId, Instant)>,
    pub poison: Option<Poison>,
    /// Some rank's collectives broke off; when nobody turns out to be lost until then, the same members form anew.
    pub regroup_at: Option<Instant>,
    /// Pairs that could not reach each other, with the number of generations in a row.
    pub pairs: BTreeMap<(MemberId, MemberId), u32>,
    pub breaks: u32,
    pub relapses: Option<Relapses>,
}

/// The state was lost, and what was made of an old one since led nowhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relapses {
    /// Where the run went back to.
    pub from: Step,
    /// The newest step that was ever committed then.
    pub committed: Step,
    /// How often in a row these were the same.
    pub times: u32,
}

/// A step that costs members.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poison {
    pub step: Step,
    pub generation: Generation,
    /// What the ranges of all lost members have in common.
    pub range: MicroRange,
    pub count: u32,
}

impl Trouble {
    /// A member that held a rank is lost.
    pub fn lost(&mut self, member: MemberId, now: Instant) {
        self.lost.push((member, now));
    }

    /// A rank's collectives broke off, nearly always because somebody died of whom the news is on the way.
    pub fn broke(&mut self, until: Instant) {
        self.regroup_at.get_or_insert(until);
    }

    /// When to form anew without a loss.
    pub fn regroup_at(&self) -> Option<Instant> {
        self.regroup_at
    }

    /// We stood still: whoever died meanwhile is told of now.
    pub fn wait_until(&mut self, until: Instant) {
        self.regroup_at = self.regroup_at.map(|at| at.max(until));
    }

    /// Another phase has begun.
    pub fn forget_timers(&mut self) {
        self.regroup_at = None;
    }
}
