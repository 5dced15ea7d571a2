//! How fast each rank computes: who holds up the others, and how the ranges would be cut if speed decided.
//!
//! Speed never moves a bit: ranges only say who computes a micro-batch. This file does not know why a rank is slow.

use super::Supervisor;
use crate::effect::{Event, SupervisorEffect};
use crate::message::StepRecord;
use dtrain_types::{MemberId, MicroRange, Rank, Step, cut_evenly, cut_in_proportion};
use std::collections::BTreeMap;

/// Weight of the newest report in a rank's pace.
const NEWEST: f64 = 0.1;
/// A pace counts after so many reports.
const KNOWN_AFTER: u32 = 16;
/// A straggler takes so much longer than the median rank; it has caught up below the second number.
const SLOW: f64 = 2.0;
const CAUGHT_UP: f64 = 1.5;
/// And it does so in so many reports in a row: a busy host slows now this rank, now that.
const FOR_LONG: u32 = 20;
/// Ranges are cut anew when the slowest rank would then need less than this share of its time.
const WORTH_IT: f64 = 0.9;
/// A generation makes so many steps before its ranges are judged; twice as many after each cut that speed decided, since
/// the speeds of a busy host change by themselves.
const JUDGED_AFTER: u64 = 20;
/// The doubling ends here.
const MOST_DOUBLINGS: u32 = 12;

/// The pace of every member that was seen.
#[derive(Debug, Default)]
pub(super) struct Paces {
    members: BTreeMap<MemberId, Pace>,
    /// Where the generation began.
    from: Step,
    /// How often speed has decided the ranges.
    cuts: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// *Units*: seconds a micro-batch.
    seconds: f64,
    reports: u32,
    /// Reports in a row that speak against `slow`.
    against: u32,
    slow: bool,
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

    fn known(&self, member: MemberId) -> Option<f64> {
        self.members.get(&member).filter(|pace| pace.reports >= KNOWN_AFTER).map(|pace| pace.seconds)
    }
}

impl Supervisor {
    /// Learns from a rank's newest step, and says when it has become, or is no more, a straggler.
    pub(super) fn pace(&mut self, rank: Rank, record: &StepRecord, effects: &mut Vec<SupervisorEffect>) {
        let seat = &self.membership.seats[rank.index()];
        let (member, share) = (seat.member, seat.range.len());
        // A peer may report any number.
        if share == 0
            || record.generation != self.generation
            || !(record.busy > 0.0 && record.busy.is_finite())
        {
            return;
        }
        let seconds = record.busy / f64::from(share);
        let pace = self.paces.members.entry(member).or_default();
        pace.seconds =
            if pace.reports == 0 { seconds } else { pace.seconds * (1.0 - NEWEST) + seconds * NEWEST };
        pace.reports = pace.reports.saturating_add(1);
        let (Some(median), Some(own)) = (self.median_pace(), self.paces.known(member)) else { return };
        let ratio = own / median;
        let Some(pace) = self.paces.members.get_mut(&member) else { return };
        let slow = if pace.slow { ratio > CAUGHT_UP } else { ratio > SLOW };
        pace.against = if slow == pace.slow { 0 } else { pace.against + 1 };
        if pace.against >= FOR_LONG {
            (pace.slow, pace.against) = (slow, 0);
            effects.push(SupervisorEffect::Event(Event::Straggler { member, rank, ratio, slow }));
        }
    }

    /// The lower median pace of the generation; none while one is not known.
    fn median_pace(&self) -> Option<f64> {
        let mut all = self.busy_paces()?;
        all.sort_by(f64::total_cmp);
        all.get(all.len().checked_sub(1)? / 2).copied()
    }

    fn busy_paces(&self) -> Option<Vec<f64>> {
        let busy = self.membership.seats.iter().filter(|seat| !seat.range.is_empty());
        busy.map(|seat| self.paces.known(seat.member)).collect()
    }

    /// The ranges of a generation of these members.
    pub(super) fn cut(&self, members: &[MemberId]) -> Vec<MicroRange> {
        let count = self.config.micro_batches;
        let paces: Option<Vec<f64>> = members.iter().map(|member| self.paces.known(*member)).collect();
        match paces.filter(|_| self.config.balance) {
            Some(paces) => cut_in_proportion(count, &paces.iter().map(|pace| 1.0 / pace).collect::<Vec<_>>()),
            None => cut_evenly(count, members.len() as u32),
        }
    }

    /// Whether another cut would be worth a new generation.
    pub(super) fn is_unbalanced(&self) -> bool {
        let made = self.progress.at().0.saturating_sub(self.paces.from.0);
        if !self.config.balance || made < JUDGED_AFTER << self.paces.cuts {
            return false;
        }
        let members: Vec<MemberId> = self.membership.seats.iter().map(|seat| seat.member).collect();
        let paces: Option<Vec<f64>> = members.iter().map(|member| self.paces.known(*member)).collect();
        let Some(paces) = paces else { return false };
        let longest = |ranges: &mut dyn Iterator<Item = MicroRange>| {
            ranges.zip(&paces).map(|(range, pace)| f64::from(range.len()) * pace).fold(0.0, f64::max)
        };
        let now = longest(&mut self.membership.seats.iter().map(|seat| seat.range));
        let then = longest(&mut self.cut(&members).into_iter());
        then < now * WORTH_IT
    }
}
