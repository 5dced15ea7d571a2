//! Who holds the state, and whose loss would cost steps.
//!
//! This file does not know how a state is copied or shared out.

use super::slot::{Life, Slot};
use super::{Losses, Supervisor};
use dtrain_types::{Holding, Instant, MemberId, Step};
use std::time::Duration;

impl Supervisor {
    /// Whether these members hold a state, all of it together.
    pub(super) fn is_held<'a>(&self, lives: impl Iterator<Item = &'a Life>) -> bool {
        let mut holders = lives.filter(|life| life.applied.is_some());
        match self.config.sharded {
            Some(_) => Holding::cover(holders.map(|life| &life.holding)),
            None => holders.next().is_some(),
        }
    }

    /// Whether the state holds steps that are in no checkpoint, as far as it is known who lives.
    ///
    /// 1. A rank dies far behind the newest checkpoint, and before the others go on the run is asked to end.
    /// 2. *Unsafe*: nobody makes a step just now, so it ends at once, and what the others hold ends with them.
    pub(super) fn holds_unsaved(&self) -> bool {
        let saved = self.checkpoints.newest().map_or(Step(0), |id| id.step);
        let is_there = self.is_taking_over() || self.is_held(self.lives().map(|(_, life)| life));
        is_there && self.progress.committed() > saved
    }

    /// Those who have a part of a state whose rest is lost, or may have; none where all of it is there.
    pub(super) fn have_parts(&self) -> Vec<MemberId> {
        if self.config.sharded.is_none() || self.is_held(self.lives().map(|(_, life)| life)) {
            return Vec::new();
        }
        let parts = self.lives().filter(|(_, life)| life.applied.is_some() || life.was_given);
        parts.map(|(member, _)| member).collect()
    }

    /// How long a member may be silent. The state must not be lost because those who hold it starve for a moment on a busy machine, and
    /// without it nobody has anything to go on with: whoever is needed for it is given the time after which a world without progress
    /// counts as one that hangs. That a process has ended is told by its node, and not awaited here.
    pub(super) fn may_be_silent(&self, member: MemberId, needed: &[MemberId]) -> Duration {
        let times = self.config.timeouts;
        if needed.contains(&member) { times.progress } else { times.detect }
    }

    /// The fewest members, those last heard, who hold the state together; none where it is lost, or no loss is survived.
    ///
    /// 1. Rank 0 holds the state, and those who were started again have not copied it.
    /// 2. It is not heard for a second, for its machine is busy starting them.
    /// 3. *Unsafe*: it is ended, and the run goes back to the newest checkpoint.
    pub(super) fn needed_for_the_state(&self) -> Vec<MemberId> {
        if self.config.losses == Losses::EndTheRun {
            return Vec::new();
        }
        let holder = |(member, slot): (&MemberId, &'_ Slot)| {
            let life = slot.able().filter(|life| life.applied.is_some())?;
            Some((life.silent_since(), *member))
        };
        let mut holders: Vec<(Instant, MemberId)> = self.slots.iter().filter_map(holder).collect();
        holders.sort_unstable_by(|a, b| b.cmp(a));
        let mut all = Holding::default();
        let is_enough = |life: &Life| {
            all = all.and(&life.holding);
            self.config.sharded.is_none() || all == Holding::whole()
        };
        let lives = holders.iter().filter_map(|(_, member)| self.slots[member].life());
        let last = lives.map(is_enough).position(|enough| enough);
        let needed = last.map_or(0, |last| last + 1);
        holders[..needed].iter().map(|(_, member)| *member).collect()
    }
}
