//! The seam between whoever decides that a checkpoint is due and whoever keeps it.
//!
//! The life of a checkpoint: [`Store::begin`] and [`Store::write_shard`] by each rank, then [`Store::commit`] by the
//! committer when every rank has reported its shard, or [`Store::abandon`] if one could not. Until `commit` returns, a reader does
//! not see the new checkpoint at all; after it, wholly (S6).

use crate::{
    Check, Checkpoint, CheckpointId, Damage, Fault, Manifest, Owner, StoreError, TensorData, UnsyncedShard,
};
use dtrain_types::Rank;
use std::num::NonZeroUsize;

/// A checkpoint that lies in the store.
#[derive(Debug)]
pub struct FoundCheckpoint {
    /// Its name.
    pub id: CheckpointId,
    /// Its manifest, or what is wrong with it.
    pub valid: Result<Manifest, Damage>,
}

/// The resume point of a run.
#[derive(Debug)]
pub struct Newest {
    /// The newest checkpoint of which every digest agrees.
    pub checkpoint: Option<Checkpoint>,
    /// Newer ones that were passed over, newest first, each with what is wrong.
    pub damaged: Vec<Damage>,
}

/// Keeps checkpoints of one run.
pub trait Store: Send + Sync {
    /// Makes room for a new checkpoint that nobody sees yet. Every rank may call it, in any order: it removes nothing,
    /// so no rank can lose another's shard. An attempt that failed is cleared by [`Store::abandon`] before the next.
    ///
    /// *Errors*: [`StoreError::Exists`] if a checkpoint of this name was committed.
    fn begin(&self, id: CheckpointId) -> Result<(), StoreError>;

    /// Writes a rank's shard into a checkpoint that was begun; durable when what it returns is synced. *Blocks* on the disk.
    ///
    /// *Panics* if a tensor's data does not fit its shape or a name comes twice.
    fn write_shard(
        &self,
        id: CheckpointId,
        rank: Rank,
        tensors: &[TensorData<'_>],
    ) -> Result<UnsyncedShard, StoreError>;

    /// Makes the checkpoint of `manifest` visible, whole and durable, or not at all. *Blocks* on the disk.
    ///
    /// The caller promises that every shard in the manifest was reported by [`Store::write_shard`] and that the
    /// ledger is durable up to its step. `owner` is asked once more right before the rename.
    fn commit(&self, manifest: &Manifest, owner: &dyn Owner) -> Result<(), StoreError>;

    /// Throws away a checkpoint that was begun; one that was never begun is fine.
    fn abandon(&self, id: CheckpointId) -> Result<(), StoreError>;

    /// The names of all committed checkpoints, newest first, damaged or not.
    fn ids(&self) -> Result<Vec<CheckpointId>, StoreError>;

    /// Opens one checkpoint and checks it. *Errors*: the first damage found.
    fn open(&self, id: CheckpointId, check: Check) -> Result<Checkpoint, Damage>;

    /// Names the best checkpoint, replacing the one named before in one step.
    fn mark_best(&self, id: CheckpointId) -> Result<(), StoreError>;

    /// The checkpoint named best, if one is.
    fn best(&self) -> Result<Option<CheckpointId>, StoreError>;

    /// Removes one committed checkpoint so that no reader ever sees a part of it.
    fn remove(&self, id: CheckpointId) -> Result<(), StoreError>;

    /// Removes what a crash left half-written or half-removed. Only the owner of the run may ask.
    fn sweep(&self, owner: &dyn Owner) -> Result<(), StoreError>;

    /// All checkpoints with their manifests or what is wrong with them, newest first.
    fn list(&self, check: Check) -> Result<Vec<FoundCheckpoint>, StoreError> {
        let found = |id| FoundCheckpoint { id, valid: self.open(id, check).map(Checkpoint::into_manifest) };
        Ok(self.ids()?.into_iter().map(found).collect())
    }

    /// The resume point (S7): the greatest `(generation, step)` of which every digest agrees (S12).
    fn newest_valid(&self) -> Result<Newest, StoreError> {
        let mut damaged = Vec::new();
        for id in self.ids()? {
            match self.open(id, Check::Digests) {
                Ok(checkpoint) => return Ok(Newest { checkpoint: Some(checkpoint), damaged }),
                Err(damage) => {
                    tracing::debug!(checkpoint = %id, %damage, "checkpoint cannot be used");
                    damaged.push(damage);
                }
            }
        }
        Ok(Newest { checkpoint: None, damaged })
    }

    /// Keeps the newest `keep` sound checkpoints and the best one; gives the names of those removed.
    ///
    /// The newest sound one is the resume point and always among them. Damaged ones do not count, and go once
    /// `keep` newer sound ones exist.
    fn retain(&self, keep: NonZeroUsize) -> Result<Vec<CheckpointId>, StoreError> {
        let best = self.best()?;
        let (mut sound, mut removed) = (0, Vec::new());
        for id in self.ids()? {
            if sound < keep.get() {
                match self.open(id, Check::Sizes) {
                    Ok(_) => sound += 1,
                    // What cannot be read now may be sound; nothing is removed on a guess.
                    Err(damage) if matches!(damage.fault, Fault::Unreadable(_)) => return Err(damage.into()),
                    Err(damage) => {
                        tracing::debug!(checkpoint = %id, %damage, "a damaged checkpoint does not count")
                    }
                }
            } else if Some(id) != best {
                self.remove(id)?;
                removed.push(id);
            }
        }
        Ok(removed)
    }
}
