//! How fast each rank computes: who holds up the others, and how the ranges would be cut if speed decided.
//!
//! Speed never moves a bit: ranges only say who computes a micro-batch. This file does not know why a rank is slow.

use super::Supervisor;
use crate::effect::{Event, SupervisorEffect};
use crate::message::StepRecord;
use dtrain_types::{MemberId, MicroRange, Rank, Step, cut_evenly, cut_in_proportion};

/// Weight of the newest report in a rank's pace.
const NEWEST: f64 = 0.1;
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

impl Supervisor {
    /// Learns from a rank's newest step, and says when it has become, or is no more, a straggler.
    pub(super) fn pace(&mut self, rank: Rank, record: &StepRecord, effects: &mut Vec<SupervisorEffect>) {
        let participant = &self.membership.participants[rank.index()];
        let (member, share) = (participant.member, participant.range.len());
        // A peer may report any number. A step in which the rank has less to do than in others says nothing of its speed.
        if share == 0
            || record.generation != self.generation
            || !(record.busy > 0.0 && record.busy.is_finite())
            || !(Step(1)..=self.config.schedule.last).contains(&record.step)
            || participant.range.within(self.config.batches.step(record.step).micro_batches)
                != participant.range
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
        let busy = self.membership.participants.iter().filter(|participant| !participant.range.is_empty());
        busy.map(|participant| self.paces.known(participant.member)).collect()
    }

    /// The ranges of a generation of these members.
    pub(super) fn cut(&self, members: &[MemberId]) -> Vec<MicroRange> {
        let count = self.config.batches.micro_batches();
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
        let members: Vec<MemberId> =
            self.membership.participants.iter().map(|participant| participant.member).collect();
        let paces: Option<Vec<f64>> = members.iter().map(|member| self.paces.known(*member)).collect();
        let Some(paces) = paces else { return false };
        let longest = |ranges: &mut dyn Iterator<Item = MicroRange>| {
            ranges.zip(&paces).map(|(range, pace)| f64::from(range.len()) * pace).fold(0.0, f64::max)
        };
        let now = longest(&mut self.membership.participants.iter().map(|participant| participant.range));
        let then = longest(&mut self.cut(&members).into_iter());
        then < now * WORTH_IT
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Losses, Reduce, StartFrom, SupervisorConfig};
    use super::*;
    use crate::message::{Membership, Participant};
    use crate::schedule::{Every, Schedule};
    use crate::timeouts::Timeouts;
    use dtrain_types::{BatchPlan, Epoch, Generation, Incarnation, Instance, NodeId, Seed, Trailer};
    use std::sync::Arc;
    use std::time::Duration;

    const STEPS_PER_EPOCH: u64 = 3;

    /// Two ranks of two micro-batches each in a full step; the last step of an epoch has two, which are rank 0's.
    fn supervisor() -> Supervisor {
        let samples = (STEPS_PER_EPOCH - 1) * 4 + 2;
        let mut supervisor = Supervisor::new(SupervisorConfig {
            instance: Instance(1),
            wanted_nodes: 1,
            most_nodes: 1,
            most_ranks: 2,
            min_ranks: 1,
            join_timeout: Duration::from_secs(1),
            timeouts: Timeouts::derive(Duration::from_secs(1)).expect("in range"),
            losses: Losses::EndTheRun,
            reduce: Reduce::Exact,
            sharded: None,
            balance: false,
            batches: BatchPlan::new(Seed(1), samples, 4, 1).expect("sizes that fit"),
            schedule: Schedule {
                last: Step(1_000),
                steps_per_epoch: STEPS_PER_EPOCH,
                checkpoint: Every::Never,
                validation: Every::Never,
                validation_micro_batches: 0,
                verify: 0,
            },
            taken_over: None,
            start: StartFrom::Fresh,
            first_generation: Generation(1),
            reserved: Generation(1),
        });
        let participants = (0..).zip(cut_evenly(4, 2)).map(|(rank, range)| Participant {
            member: MemberId(rank),
            incarnation: Incarnation(1),
            node: NodeId(0),
            address: None,
            sees_run_folder: true,
            range,
        });
        supervisor.membership = Arc::new(Membership { participants: participants.collect(), unmirrored: 0 });
        supervisor
    }

    /// The ranks that are called slow when rank 0 reports these steps and rank 1 those, with what it was busy.
    fn slow(
        of_first: impl Iterator<Item = u64>,
        of_second: impl Iterator<Item = u64>,
        busy: f64,
    ) -> Vec<Rank> {
        let mut supervisor = supervisor();
        let mut effects = Vec::new();
        for (first, second) in of_first.zip(of_second) {
            for (rank, step, busy) in [(Rank(0), first, 0.004), (Rank(1), second, busy)] {
                let record = StepRecord {
                    generation: supervisor.generation,
                    step: Step(step),
                    epoch: Epoch(0),
                    trailer: Trailer::EMPTY,
                    seconds: 0.005,
                    busy,
                    lr: 0.1,
                    gradient_norm: 1.0,
                };
                supervisor.pace(rank, &record, &mut effects);
            }
        }
        let slow = |effect| match effect {
            SupervisorEffect::Event(Event::Straggler { rank, slow: true, .. }) => Some(rank),
            _ => None,
        };
        effects.into_iter().filter_map(slow).collect()
    }

    #[test]
    fn a_rank_that_is_slower_in_steps_that_are_alike_is_a_straggler() {
        assert_eq!(slow((1..).step_by(3), (1..301).step_by(3), 0.001), [Rank(0)]);
        assert_eq!(slow((1..).step_by(3), (1..301).step_by(3), 0.016), [Rank(1)]);
        assert_eq!(slow((1..).step_by(3), (1..301).step_by(3), 0.003), []);
    }

    #[test]
    fn a_step_in_which_a_rank_has_nothing_to_do_makes_nobody_slow() {
        assert_eq!(slow((1..).step_by(3), (3..303).step_by(3), 0.0001), []);
    }

    #[test]
    fn steps_that_the_run_does_not_have_say_nothing() {
        assert_eq!(slow((1..).step_by(3), [0, 1_001, u64::MAX].into_iter().cycle().take(300), 0.016), []);
    }
}
