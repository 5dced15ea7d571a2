//! Checkpoints: the shards of all ranks make one manifest (S6), or the checkpoint is given up and training goes on.
//!
//! This file does not know files or formats: durable is what a rank says is durable.

use crate::message::{Membership, ShardFile, ShardOutcome, ShardReport};
use dtrain_types::{CheckpointId, Digest};
use dtrain_types::{Generation, Incarnation, MemberId, Rank, Step};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The checkpoints that are not settled yet, and the newest complete one.
///
/// They are settled in the order in which they were begun, whatever the order in which files are finished: members are
/// told one name, up to which all is settled. Their writers go on when a generation ends, so each remembers its own.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    /// Begun, not settled yet; in order.
    open: VecDeque<Open>,
    writing: bool,
    settled: CheckpointId,
    newest: Option<CheckpointId>,
}

#[derive(Debug)]
struct Open {
    id: CheckpointId,
    /// The ranks of its generation; those that see the run folder write.
    writers: Arc<Membership>,
    shards: BTreeMap<Rank, ShardOutcome>,
    /// A writer of whose shard nothing will be heard.
    orphaned: Option<MemberId>,
}

/// What all ranks together say about a checkpoint.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// All shards are durable and agree.
    Complete {
        id: CheckpointId,
        shards: Vec<ShardFile>,
        digest: Digest,
        state_digest: Digest,
        writers: Arc<Membership>,
    },
    /// A shard could not be written, or its writer was lost.
    GivenUp { id: CheckpointId, member: MemberId, reason: String },
    /// Equal steps, different states (S5).
    Disagree { id: CheckpointId, member: MemberId, own: Digest, other: Digest },
}

impl Checkpoints {
    pub fn new(newest: Option<CheckpointId>) -> Self {
        Self { newest, ..Self::default() }
    }

    /// All checkpoints up to this one are written or given up.
    pub fn settled(&self) -> CheckpointId {
        self.settled
    }

    /// The newest checkpoint that is complete, in this life of the run or before it (S7).
    pub fn newest(&self) -> Option<CheckpointId> {
        self.newest
    }

    /// Whether a manifest is being written.
    pub fn is_writing(&self) -> bool {
        self.writing
    }

    /// How many are due, and neither written nor given up.
    pub fn due(&self) -> usize {
        self.open.len()
    }

    /// A step is to be written by these.
    pub fn expect(&mut self, id: CheckpointId, writers: &Arc<Membership>) {
        let (writers, shards) = (Arc::clone(writers), BTreeMap::new());
        self.open.push_back(Open { id, writers, shards, orphaned: None });
    }

    /// Whether all that is due is written or given up.
    pub fn is_settled(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether the state of `step` is written, or is about to be.
    pub fn has(&self, step: Step) -> bool {
        let whole = |open: &Open| open.id.step == step && open.orphaned.is_none();
        self.newest.is_some_and(|id| id.step == step) || self.open.iter().any(whole)
    }

    /// A new generation begins. What members of older ones began and we never heard of is given up: they need not say it.
    pub fn restart(&mut self, generation: Generation) {
        if self.open.is_empty() {
            self.settled = self.settled.max(CheckpointId { generation, step: Step(0) });
        }
    }

    /// A generation begins to make steps. A rank that left the one before may not have come to write: nobody can tell it from
    /// one that is still writing, and members wait for what is not settled. So what is not whole by now is given up.
    ///
    /// 1. A connection breaks in step 14, which two ranks do not finish. The others begin to write it.
    /// 2. The next generation goes on with step 14, which the two copy; they never write it for the one before.
    /// 3. All wait for the checkpoint of step 14 to be settled before they begin that of step 21.
    pub fn leave_behind(&mut self, generation: Generation) {
        for (at, open) in self.open.iter_mut().enumerate().filter(|(_, open)| open.id.generation < generation)
        {
            let missing = open.writers.writers().find(|rank| !open.shards.contains_key(rank));
            if let Some(rank) = missing.filter(|_| !(at == 0 && self.writing)) {
                let member = open.writers.participants[rank.index()].member;
                open.orphaned.get_or_insert(member);
            }
        }
    }

    /// Takes in what one life reports; says whether there was anything new.
    ///
    /// *Errors*: what is impossible about it, in words.
    pub fn take(
        &mut self,
        member: MemberId,
        incarnation: Incarnation,
        shards: &[ShardReport],
    ) -> Result<bool, String> {
        let mut new = false;
        for shard in shards {
            // A shard is said again until its checkpoint is settled.
            let Some(open) = self.open.iter_mut().find(|open| open.id == shard.id) else { continue };
            let participant = open
                .writers
                .participants
                .get(shard.rank.index())
                .filter(|participant| participant.sees_run_folder);
            if participant.is_none_or(|participant| {
                (participant.member, participant.incarnation) != (member, incarnation)
            }) {
                return Err(format!(
                    "a shard of rank {} of checkpoint {}, which it is not",
                    shard.rank, shard.id
                ));
            }
            new |= open.shards.insert(shard.rank, shard.outcome.clone()).is_none();
        }
        Ok(new)
    }

    /// The verdict on the oldest checkpoint, once all its writers reported it or one is lost; one at a time. `ready` says
    /// whether everything up to a step is recorded, so that a manifest is never ahead of the log. `current` is the
    /// generation that may still begin others.
    pub fn next(&mut self, current: Generation, ready: impl Fn(Step) -> bool) -> Option<Verdict> {
        let open = self.open.front().filter(|_| !self.writing)?;
        let (id, world) = (open.id, open.writers.writers().count());
        if world == 0 {
            let member =
                open.writers.participants.first().map_or(MemberId(0), |participant| participant.member);
            self.settle(current);
            let reason = "no rank sees the run folder".to_owned();
            return Some(Verdict::GivenUp { id, member, reason });
        }
        if let Some(member) = open.orphaned {
            self.settle(current);
            let reason = "its generation ended before all had written it".to_owned();
            return Some(Verdict::GivenUp { id, member, reason });
        }
        if open.shards.len() < world || !ready(id.step) {
            return None;
        }
        let verdict = judge(id, &open.writers, &open.shards);
        match &verdict {
            Verdict::Complete { .. } => self.writing = true,
            Verdict::GivenUp { .. } => self.settle(current),
            // The run stops.
            Verdict::Disagree { .. } => {}
        }
        Some(verdict)
    }

    /// Nobody holds the state, and the run goes back to the newest checkpoint: the oldest that is still open, given up. To be
    /// asked only once what could be completed is.
    pub fn give_up(&mut self, current: Generation) -> Option<(CheckpointId, MemberId)> {
        let open = self.open.front().filter(|_| !self.writing)?;
        let (id, member) = (
            open.id,
            open.writers.participants.first().map_or(MemberId(0), |participant| participant.member),
        );
        self.settle(current);
        Some((id, member))
    }

    fn settle(&mut self, current: Generation) {
        let Some(done) = self.open.pop_front() else { return };
        self.settled = self.settled.max(done.id);
        // With the last one of a generation that is over, what its members began and we never heard of is given up too.
        //
        // 1. Rank 0 dies while its shard of step 450 is on the way; rank 1 makes step 525 and begins to write it.
        // 2. The next generation begins at step 525 and owes that checkpoint: it stands behind the one of step 450.
        // 3. Step 450 is given up. Rank 1 would wait for the step 525 that it began for the generation before.
        let next = self.open.front().map_or(current, |open| open.id.generation);
        if done.id.generation < next {
            self.settled = self.settled.max(CheckpointId { generation: next, step: Step(0) });
        }
    }

    /// The manifest of `id` was written, or could not be. Says whether it was waited for.
    pub fn written(&mut self, id: CheckpointId, result: &Result<(), String>, current: Generation) -> bool {
        if !self.writing || self.open.front().is_none_or(|open| open.id != id) {
            return false;
        }
        self.writing = false;
        self.settle(current);
        if result.is_ok() {
            self.newest = Some(id);
        }
        true
    }

    /// The writers that have not reported the oldest checkpoint; none if there is none or it is being written.
    pub fn missing(&self) -> Vec<MemberId> {
        let Some(open) = self.open.front().filter(|_| !self.writing) else { return Vec::new() };
        let silent = open.writers.writers().filter(|rank| !open.shards.contains_key(rank));
        silent.map(|rank| open.writers.participants[rank.index()].member).collect()
    }
}

fn judge(id: CheckpointId, writers: &Arc<Membership>, ranks: &BTreeMap<Rank, ShardOutcome>) -> Verdict {
    let mut shards = Vec::with_capacity(ranks.len());
    let mut agreed: Option<(Digest, Digest)> = None;
    for (rank, outcome) in ranks {
        let member = writers.participants[rank.index()].member;
        match outcome {
            ShardOutcome::Failed { reason } => {
                return Verdict::GivenUp { id, member, reason: reason.clone() };
            }
            ShardOutcome::Durable { file, digest, state_digest } => {
                let (_, other) = *agreed.get_or_insert((*digest, *state_digest));
                if other != *state_digest {
                    return Verdict::Disagree { id, member, own: *state_digest, other };
                }
                shards.push(file.clone());
            }
        }
    }
    let (digest, state_digest) = agreed.expect("a world has a rank");
    Verdict::Complete { id, shards, digest, state_digest, writers: Arc::clone(writers) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Participant;
    use dtrain_types::{Bytes, NodeId, cut_evenly};

    fn id(generation: u64, step: u64) -> CheckpointId {
        CheckpointId { generation: Generation(generation), step: Step(step) }
    }

    fn life(member: u32) -> (MemberId, Incarnation) {
        (MemberId(member), Incarnation(1))
    }

    fn world(size: u32) -> Arc<Membership> {
        let participant = |(m, range)| {
            let (member, incarnation) = life(m);
            let (node, address, sees_run_folder) = (NodeId(0), None, m < 2);
            Participant { member, incarnation, node, address, sees_run_folder, range }
        };
        Arc::new(Membership {
            participants: (0..).zip(cut_evenly(8, size)).map(participant).collect(),
            unmirrored: 0,
        })
    }

    fn shard(id: CheckpointId, rank: u32, state: u8) -> ShardReport {
        let file =
            ShardFile { name: format!("rank-{rank:05}"), bytes: Bytes(1), digest: Digest([rank as u8; 32]) };
        let outcome =
            ShardOutcome::Durable { file, digest: Digest([state; 32]), state_digest: Digest([state; 32]) };
        ShardReport { id, rank: Rank(rank), outcome }
    }

    fn failed(id: CheckpointId, rank: u32) -> ShardReport {
        let outcome = ShardOutcome::Failed { reason: "disk full".to_owned() };
        ShardReport { id, rank: Rank(rank), outcome }
    }

    fn due(steps: &[u64]) -> Checkpoints {
        let mut all = Checkpoints::new(None);
        steps.iter().for_each(|step| all.expect(id(1, *step), &world(2)));
        all
    }

    fn take(all: &mut Checkpoints, member: u32, shards: &[ShardReport]) -> bool {
        let (member, incarnation) = life(member);
        all.take(member, incarnation, shards).expect("possible")
    }

    #[test]
    fn a_manifest_is_asked_for_only_with_all_shards_and_only_once() {
        let (mut all, now) = (due(&[5, 9]), Generation(1));
        assert!(take(&mut all, 1, &[shard(id(1, 5), 1, 7)]));
        assert!(!take(&mut all, 1, &[shard(id(1, 5), 1, 7)]), "a repeated shard is nothing new");
        assert_eq!(all.next(now, |_| true), None);
        assert_eq!(all.missing(), [MemberId(0)]);
        take(&mut all, 0, &[shard(id(1, 5), 0, 7)]);
        assert_eq!(all.next(now, |_| false), None, "its validation is not recorded");
        let Some(Verdict::Complete { shards, .. }) = all.next(now, |_| true) else { panic!("complete") };
        assert_eq!(shards.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["rank-00000", "rank-00001"]);
        assert_eq!(all.next(now, |_| true), None);
        assert!(all.written(id(1, 5), &Ok(()), now) && !all.written(id(1, 5), &Ok(()), now));
        assert_eq!((all.settled(), all.newest()), (id(1, 5), Some(id(1, 5))));
        assert!(!take(&mut all, 0, &[shard(id(1, 5), 0, 7)]), "a late repetition is nothing new");
    }

    #[test]
    fn what_a_generation_began_and_nobody_heard_of_is_settled_with_its_last_that_was_heard_of() {
        let (mut all, now) = (due(&[450]), Generation(2));
        // Rank 0 is lost; rank 1 began (1, 525), of which it could not tell. Generation 2 owes the same step.
        all.restart(now);
        assert_eq!(all.settled(), CheckpointId::default(), "a shard of step 450 may still come");
        all.leave_behind(now);
        all.expect(id(2, 525), &world(1));
        let Some(Verdict::GivenUp { id: given_up, .. }) = all.next(now, |_| true) else { panic!("given up") };
        assert_eq!(given_up, id(1, 450));
        assert!(all.settled() >= id(1, 525), "nobody waits for it: {:?}", all.settled());
        assert!(all.settled() < id(2, 525) && !all.is_settled(), "what is pending is still to be written");
    }

    #[test]
    fn a_shard_that_failed_gives_the_checkpoint_up_and_the_next_one_counts() {
        let (mut all, now) = (due(&[5, 9]), Generation(1));
        take(&mut all, 0, &[shard(id(1, 5), 0, 7), shard(id(1, 9), 0, 8)]);
        take(&mut all, 1, &[failed(id(1, 5), 1), shard(id(1, 9), 1, 8)]);
        let reason = "disk full".to_owned();
        assert_eq!(
            all.next(now, |_| true),
            Some(Verdict::GivenUp { id: id(1, 5), member: MemberId(1), reason })
        );
        assert_eq!((all.settled(), all.newest()), (id(1, 5), None));
        assert!(
            matches!(all.next(now, |_| true), Some(Verdict::Complete { id: got, .. }) if got == id(1, 9))
        );
    }

    #[test]
    fn a_later_checkpoint_whose_files_are_finished_first_waits_for_the_earlier_one() {
        let (mut all, now) = (due(&[5, 9]), Generation(1));
        for member in 0..2 {
            take(&mut all, member, &[shard(id(1, 9), member, 8)]);
        }
        assert_eq!(all.next(now, |_| true), None);
        for member in 0..2 {
            take(&mut all, member, &[shard(id(1, 5), member, 7)]);
        }
        assert!(
            matches!(all.next(now, |_| true), Some(Verdict::Complete { id: got, .. }) if got == id(1, 5))
        );
        assert!(all.written(id(1, 5), &Err("no room".to_owned()), now));
        assert!(
            matches!(all.next(now, |_| true), Some(Verdict::Complete { id: got, .. }) if got == id(1, 9))
        );
        assert!(all.written(id(1, 9), &Ok(()), now) && all.is_settled());
        assert_eq!(all.newest(), Some(id(1, 9)));
    }

    #[test]
    fn shards_of_different_states_are_no_checkpoint() {
        let (mut all, now) = (due(&[5]), Generation(1));
        take(&mut all, 0, &[shard(id(1, 5), 0, 7)]);
        take(&mut all, 1, &[shard(id(1, 5), 1, 8)]);
        let (own, other) = (Digest([8; 32]), Digest([7; 32]));
        let member = MemberId(1);
        assert_eq!(all.next(now, |_| true), Some(Verdict::Disagree { id: id(1, 5), member, own, other }));
    }

    #[test]
    fn a_checkpoint_outlives_its_generation_and_a_lost_writer_ends_it_unless_its_shard_is_there() {
        let mut all = due(&[5, 9]);
        take(&mut all, 0, &[shard(id(1, 5), 0, 7), shard(id(1, 9), 0, 8)]);
        take(&mut all, 1, &[shard(id(1, 5), 1, 7)]);
        all.restart(Generation(2));
        assert_eq!(all.settled(), id(0, 0), "a shard that is still to come must not be forgotten");
        all.leave_behind(Generation(2));
        assert!(matches!(all.next(Generation(2), |_| true), Some(Verdict::Complete { .. })));
        assert!(all.written(id(1, 5), &Ok(()), Generation(2)));
        let lost = all.next(Generation(2), |_| true);
        assert!(matches!(lost, Some(Verdict::GivenUp { member: MemberId(1), .. })), "{lost:?}");
        assert_eq!(all.settled(), id(2, 0), "whatever generation 1 began is settled");
        assert!(all.has(Step(5)) && !all.has(Step(9)));
    }

    #[test]
    fn a_rank_that_does_not_see_the_folder_is_not_waited_for_and_where_none_does_nothing_is_written() {
        let mut all = Checkpoints::new(None);
        all.expect(id(1, 5), &world(3));
        for member in 0..2 {
            take(&mut all, member, &[shard(id(1, 5), member, 7)]);
        }
        assert_eq!(all.take(MemberId(2), Incarnation(1), &[shard(id(1, 5), 2, 7)]).ok(), None);
        assert!(matches!(all.next(Generation(1), |_| true), Some(Verdict::Complete { .. })));
        let mut blind = Checkpoints::new(None);
        let mut nobody = (*world(1)).clone();
        nobody.participants[0].sees_run_folder = false;
        blind.expect(id(1, 5), &Arc::new(nobody));
        assert!(matches!(blind.next(Generation(1), |_| true), Some(Verdict::GivenUp { .. })));
        assert!(blind.is_settled());
    }

    #[test]
    fn what_is_not_whole_when_the_next_generation_runs_is_given_up_and_what_is_whole_is_not() {
        let mut all = due(&[5, 9]);
        for member in 0..2 {
            take(&mut all, member, &[shard(id(1, 5), member, 7)]);
        }
        take(&mut all, 0, &[shard(id(1, 9), 0, 8)]);
        all.leave_behind(Generation(2));
        assert!(all.has(Step(5)) && !all.has(Step(9)), "step 9 is to be written again");
        assert!(matches!(all.next(Generation(2), |_| true), Some(Verdict::Complete { .. })));
        assert!(all.written(id(1, 5), &Ok(()), Generation(2)));
        let given_up = all.next(Generation(2), |_| true);
        assert!(matches!(given_up, Some(Verdict::GivenUp { member: MemberId(1), .. })), "{given_up:?}");
    }

    #[test]
    fn a_shard_of_another_writer_is_impossible() {
        let mut all = due(&[5]);
        let (member, incarnation) = life(1);
        assert!(all.take(member, incarnation, &[shard(id(1, 5), 0, 7)]).is_err());
        assert!(all.take(member, Incarnation(2), &[shard(id(1, 5), 1, 7)]).is_err());
    }
}
