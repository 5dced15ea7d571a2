//! Checkpoints: the shards of all ranks make one manifest (S6), or the checkpoint is given up and training goes on.
//!
//! This file does not know files or formats: durable is what a rank says is durable.

use crate::message::{CheckpointId, Digest, ShardFile, ShardOutcome, ShardReport};
use dtrain_types::{Rank, Step};
use std::collections::{BTreeMap, VecDeque};

/// The checkpoints of one generation that are not settled yet, and the newest complete one.
///
/// They are settled in the order of their steps, whatever the order in which files are finished: members are told one
/// number, up to which all is settled.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    /// Due after a committed step, not settled yet; in order.
    due: VecDeque<CheckpointId>,
    waiting: BTreeMap<CheckpointId, BTreeMap<Rank, ShardOutcome>>,
    writing: Option<CheckpointId>,
    settled: Step,
    newest: Option<CheckpointId>,
}

/// What all ranks together say about a checkpoint.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// All shards are durable and agree.
    Complete { id: CheckpointId, shards: Vec<ShardFile>, digest: Digest, state_digest: Digest },
    /// A shard could not be written.
    GivenUp { id: CheckpointId, rank: Rank, reason: String },
    /// Equal steps, different states (S5).
    Disagree { id: CheckpointId, rank: Rank, own: Digest, other: Digest },
}

impl Checkpoints {
    pub fn new(start: Step) -> Self {
        Self { settled: start, ..Self::default() }
    }

    /// All checkpoints up to this step are written or given up.
    pub fn settled(&self) -> Step {
        self.settled
    }

    /// The newest checkpoint that was completed.
    pub fn newest(&self) -> Option<CheckpointId> {
        self.newest
    }

    /// Whether a manifest is being written.
    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Whether members may be waiting for the disk: they begin a checkpoint only when the one before it is settled.
    pub fn is_backed_up(&self) -> bool {
        self.due.len() > 1
    }

    /// A committed step is to be written.
    pub fn expect(&mut self, id: CheckpointId) {
        self.due.push_back(id);
    }

    /// Whether all that is due is written or given up.
    pub fn is_settled(&self) -> bool {
        self.due.is_empty()
    }

    /// Takes in what one rank reports; says whether there was anything new.
    pub fn take(&mut self, shards: &[ShardReport]) -> bool {
        let mut new = false;
        // A shard is said again until its checkpoint is settled, also while the manifest is being written.
        let open = |id: CheckpointId| id.step > self.settled && Some(id) != self.writing;
        for shard in shards.iter().filter(|shard| open(shard.id)) {
            let ranks = self.waiting.entry(shard.id).or_default();
            new |= ranks.insert(shard.rank, shard.outcome.clone()).is_none();
        }
        new
    }

    /// The verdict on the oldest checkpoint that is due, once all `world` ranks reported it; one at a time. `ready` says
    /// whether all validations up to a step are recorded, so that a manifest is never ahead of the log.
    pub fn next(&mut self, world: u32, ready: impl Fn(Step) -> bool) -> Option<Verdict> {
        let id = *self.due.front()?;
        let ranks = self.waiting.get(&id).filter(|ranks| ranks.len() == world as usize)?;
        if self.writing.is_some() || !ready(id.step) {
            return None;
        }
        let verdict = judge(id, ranks);
        self.waiting.remove(&id);
        match &verdict {
            Verdict::Complete { .. } => self.writing = Some(id),
            Verdict::GivenUp { .. } => self.settle(id),
            // The run stops.
            Verdict::Disagree { .. } => {}
        }
        Some(verdict)
    }

    fn settle(&mut self, id: CheckpointId) {
        self.settled = id.step;
        self.due.pop_front();
    }

    /// The manifest of `id` was written, or could not be. Says whether it was waited for.
    pub fn written(&mut self, id: CheckpointId, ok: bool) -> bool {
        if self.writing != Some(id) {
            return false;
        }
        self.writing = None;
        self.settle(id);
        if ok {
            self.newest = Some(id);
        }
        true
    }

    /// The ranks that have not reported the oldest checkpoint that is due; none if none is or it is being written.
    pub fn missing(&self, world: u32) -> Vec<Rank> {
        let Some(id) = self.due.front().filter(|_| self.writing.is_none()) else { return Vec::new() };
        let has = |rank: &Rank| self.waiting.get(id).is_some_and(|ranks| ranks.contains_key(rank));
        (0..world).map(Rank).filter(|rank| !has(rank)).collect()
    }
}

fn judge(id: CheckpointId, ranks: &BTreeMap<Rank, ShardOutcome>) -> Verdict {
    let mut shards = Vec::with_capacity(ranks.len());
    let mut agreed: Option<(Digest, Digest)> = None;
    for (rank, outcome) in ranks {
        match outcome {
            ShardOutcome::Failed { reason } => {
                return Verdict::GivenUp { id, rank: *rank, reason: reason.clone() };
            }
            ShardOutcome::Durable { file, digest, state_digest } => {
                let (_, other) = *agreed.get_or_insert((*digest, *state_digest));
                if other != *state_digest {
                    return Verdict::Disagree { id, rank: *rank, own: *state_digest, other };
                }
                shards.push(file.clone());
            }
        }
    }
    let (digest, state_digest) = agreed.expect("a world has a rank");
    Verdict::Complete { id, shards, digest, state_digest }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::{Bytes, Generation};

    fn id(step: u64) -> CheckpointId {
        CheckpointId { generation: Generation(1), step: Step(step) }
    }

    fn shard(step: u64, rank: u32, state: u8) -> ShardReport {
        let file =
            ShardFile { name: format!("rank-{rank:05}"), bytes: Bytes(1), digest: Digest([rank as u8; 32]) };
        let outcome =
            ShardOutcome::Durable { file, digest: Digest([state; 32]), state_digest: Digest([state; 32]) };
        ShardReport { id: id(step), rank: Rank(rank), outcome }
    }

    fn due(steps: &[u64]) -> Checkpoints {
        let mut all = Checkpoints::new(Step(0));
        steps.iter().for_each(|step| all.expect(id(*step)));
        all
    }

    fn failed(step: u64, rank: u32) -> ShardReport {
        let outcome = ShardOutcome::Failed { reason: "disk full".to_owned() };
        ShardReport { id: id(step), rank: Rank(rank), outcome }
    }

    #[test]
    fn a_manifest_is_asked_for_only_with_all_shards_and_only_once() {
        let mut all = due(&[5, 9]);
        assert!(all.take(&[shard(5, 1, 7)]));
        assert!(!all.take(&[shard(5, 1, 7)]), "a repeated shard is nothing new");
        assert_eq!(all.next(2, |_| true), None);
        assert_eq!(all.missing(2), [Rank(0)]);
        all.take(&[shard(5, 0, 7)]);
        assert_eq!(all.next(2, |_| false), None, "its validation is not recorded");
        let Some(Verdict::Complete { shards, .. }) = all.next(2, |_| true) else { panic!("complete") };
        assert_eq!(shards.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["rank-00000", "rank-00001"]);
        assert!(
            !all.take(&[shard(5, 1, 7)]),
            "a shard repeated while the manifest is written is nothing new"
        );
        assert_eq!(all.next(2, |_| true), None);
        assert!(all.written(id(5), true) && !all.written(id(5), true));
        assert_eq!((all.settled(), all.newest()), (Step(5), Some(id(5))));
        assert!(all.waiting.is_empty(), "nothing of it is left");
        assert!(!all.take(&[shard(5, 0, 7)]), "a late repetition is nothing new");
    }

    #[test]
    fn a_shard_that_failed_gives_the_checkpoint_up_and_the_next_one_counts() {
        let mut all = due(&[5, 9]);
        all.take(&[shard(5, 0, 7), failed(5, 1), shard(9, 0, 8), shard(9, 1, 8)]);
        let verdict = all.next(2, |_| true);
        assert_eq!(
            verdict,
            Some(Verdict::GivenUp { id: id(5), rank: Rank(1), reason: "disk full".to_owned() })
        );
        assert_eq!((all.settled(), all.newest()), (Step(5), None));
        assert!(matches!(all.next(2, |_| true), Some(Verdict::Complete { id: got, .. }) if got == id(9)));
    }

    #[test]
    fn a_later_checkpoint_whose_files_are_finished_first_waits_for_the_earlier_one() {
        let mut all = due(&[5, 9]);
        all.take(&[shard(9, 0, 8), shard(9, 1, 8)]);
        assert_eq!(all.next(2, |_| true), None);
        all.take(&[shard(5, 0, 7), shard(5, 1, 7)]);
        assert!(matches!(all.next(2, |_| true), Some(Verdict::Complete { id: got, .. }) if got == id(5)));
        assert!(all.written(id(5), false));
        assert!(matches!(all.next(2, |_| true), Some(Verdict::Complete { id: got, .. }) if got == id(9)));
        assert!(all.written(id(9), true) && all.is_settled());
        assert_eq!(all.newest(), Some(id(9)));
    }

    #[test]
    fn shards_of_different_states_are_no_checkpoint() {
        let mut all = due(&[5, 9]);
        all.take(&[shard(5, 0, 7), shard(5, 1, 8)]);
        let (own, other) = (Digest([8; 32]), Digest([7; 32]));
        assert_eq!(all.next(2, |_| true), Some(Verdict::Disagree { id: id(5), rank: Rank(1), own, other }));
    }
}
