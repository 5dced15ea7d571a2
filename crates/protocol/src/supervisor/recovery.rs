//! What the supervisor remembers from one loss to the next: how long the world stood still, which step costs members
//! again and again, and who cannot reach whom.
//!
//! This file does not know how a generation is formed.

use super::Supervisor;
use super::trouble::{Poison, Relapses};
use crate::cause::What;
use crate::effect::{Event, Reason, SupervisorEffect};
use crate::message::Stage;
use crate::phase::Phase;
use dtrain_types::{Instant, MemberId, MicroRange, Step};
use std::collections::BTreeSet;

/// One step may cost members in so many generations in a row; then it is the step's fault.
const POISON: u32 = 3;
/// A pair may fail to reach each other in so many generations in a row.
const PATIENCE_WITH_PAIRS: u32 = 2;
/// Collectives may break off in so many generations in a row without a step between, and without a loss.
const MOST_BREAKS: u32 = 8;
/// The run may go back to the same state so many times without getting beyond where it was.
const MOST_RELAPSES: u32 = 10;

impl Supervisor {
    /// The world makes steps again: tells how long it took, and forgets what it has recovered from.
    pub(super) fn note_recovery(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        let (at, committed) = (self.progress.at(), self.progress.committed());
        // Steps that are made again after a resume were committed before.
        if at <= self.resume_point.step || at < committed {
            return;
        }
        self.trouble.poison = None;
        self.trouble.pairs.clear();
        self.trouble.breaks = 0;
        for (member, since) in std::mem::take(&mut self.trouble.lost) {
            let seconds = now.since(since).as_secs_f64();
            effects.push(SupervisorEffect::Event(Event::Recovered { member, seconds, step: committed }));
        }
        let unsaid = |failed: &super::Seen| matches!(failed.cause.what, What::Reported(_));
        self.seen.retain(unsaid);
    }

    /// Counts a loss in *run* against the step that was being made. Says so when it is the step's own fault.
    pub(super) fn poison(&mut self, member: MemberId) -> Option<What> {
        if self.phase != Phase::Run {
            return None;
        }
        let (step, generation) = (self.progress.at().next(), self.generation);
        let participant =
            self.membership.participants.iter().find(|participant| participant.member == member)?;
        let common = |a: MicroRange, b: MicroRange| MicroRange { lo: a.lo.max(b.lo), hi: a.hi.min(b.hi) };
        let poison = match self.trouble.poison.filter(|poison| poison.step == step) {
            // Two losses in one generation count once, and the first of them.
            Some(poison) if poison.generation == generation => poison,
            Some(poison)
                if common(poison.range, participant.range).lo
                    < common(poison.range, participant.range).hi =>
            {
                Poison {
                    generation,
                    range: common(poison.range, participant.range),
                    count: poison.count + 1,
                    ..poison
                }
            }
            _ => Poison { step, generation, range: participant.range, count: 1 },
        };
        self.trouble.poison = Some(poison);
        let Poison { step, range, .. } = poison;
        (poison.count >= POISON && range.lo < range.hi).then_some(What::Poisonous { step, range })
    }

    /// The state is lost, and the run is to begin anew at this step. Says so when that has come to the same too often: where ranks die at
    /// the same place each time, and slowly, nothing else would ever end the run.
    pub(super) fn relapse(&mut self, from: Step) -> Option<(MemberId, What)> {
        let step = self.progress.committed();
        let before = self.trouble.relapses.filter(|before| (before.from, before.committed) == (from, step));
        let times = before.map_or(0, |before| before.times) + 1;
        self.trouble.relapses = Some(Relapses { from, committed: step, times });
        let (member, _) = *self.trouble.lost.last()?;
        (times > MOST_RELAPSES).then_some((member, What::Relapsed { times, step }))
    }

    /// Collectives broke off and nobody was lost: the same members form anew, except those that cannot be reached.
    pub(super) fn mend(&mut self, now: Instant, effects: &mut Vec<SupervisorEffect>) {
        self.trouble.regroup_at = None;
        let broken: Vec<(MemberId, String, Vec<MemberId>)> = self
            .lives()
            .filter_map(|(member, life)| match &life.stage {
                Stage::Broken { why, unreachable } => Some((member, why.clone(), unreachable.clone())),
                _ => None,
            })
            .collect();
        let Some((first, why, _)) = broken.first().cloned() else { return };
        self.trouble.breaks += 1;
        let ends = self.config.losses == super::Losses::EndTheRun || self.trouble.breaks > MOST_BREAKS;
        if ends {
            return self.lost(now, first, What::Broken(why), effects);
        }
        self.count_pairs(&broken);
        if let Some((out, by)) = self.worst_side() {
            self.trouble.pairs.clear();
            return self.lost(now, out, What::Unreachable { by }, effects);
        }
        effects.push(SupervisorEffect::Event(Event::Reforming { reason: Reason::Broken(first) }));
        self.regroup(now, effects);
    }

    fn count_pairs(&mut self, broken: &[(MemberId, String, Vec<MemberId>)]) {
        let mut now = BTreeSet::new();
        for (member, _, unreachable) in broken {
            now.extend(unreachable.iter().map(|other| (*member.min(other), *member.max(other))));
        }
        self.trouble.pairs.retain(|pair, _| now.contains(pair));
        for pair in now {
            *self.trouble.pairs.entry(pair).or_default() += 1;
        }
    }

    /// Of a pair that stays apart, the one without which the state is not lost; else the one that fewer others can reach. And who
    /// cannot reach it.
    fn worst_side(&self) -> Option<(MemberId, Vec<MemberId>)> {
        let apart: Vec<_> = self
            .trouble
            .pairs
            .iter()
            .filter(|(_, count)| **count >= PATIENCE_WITH_PAIRS)
            .map(|(p, _)| *p)
            .collect();
        let unreached_by = |member: MemberId| -> Vec<MemberId> {
            let other = |(a, b): &(MemberId, MemberId)| if *a == member { *b } else { *a };
            apart.iter().filter(|(a, b)| *a == member || *b == member).map(other).collect()
        };
        let ends = apart.iter().flat_map(|(a, b)| [*a, *b]);
        let needed = self.needed_for_the_state();
        let worst =
            ends.max_by_key(|member| (!needed.contains(member), unreached_by(*member).len(), *member))?;
        Some((worst, unreached_by(worst)))
    }
}
