//! The simulated run folder: files that are lost, torn or whole after a crash, and manifests that appear by a rename.
//!
//! A file is written, then synced; a host that loses power before the sync leaves it torn or gone. This file does not know
//! who asks for what, nor when.

use blake3::Hasher;
use dtrain_protocol::{CheckpointId, Digest, ManifestOrder, ShardFile};
use dtrain_types::{Bytes, NodeId, Rank};
use std::collections::BTreeMap;
use std::fmt;

/// One shard.
#[derive(Clone, Debug)]
struct File {
    floats: Vec<f32>,
    synced: bool,
    /// Whose memory holds it until it is synced.
    host: NodeId,
}

/// Why something could not be had from the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// There is no room.
    Full,
    /// There is no such checkpoint or file.
    Missing(String),
    /// A file's content is not what its manifest says.
    Damaged(String),
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the disk is full"),
            Self::Missing(what) => write!(f, "{what} is not there"),
            Self::Damaged(what) => write!(f, "{what} is damaged"),
        }
    }
}

/// The run folder.
#[derive(Debug, Default)]
pub struct SimDisk {
    files: BTreeMap<(CheckpointId, Rank), File>,
    manifests: BTreeMap<CheckpointId, ManifestOrder>,
    /// Nothing can be written.
    pub full: bool,
}

/// What becomes of a file that was not synced when the power was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsynced {
    /// Its first half is there.
    Torn,
    /// Nothing of it is.
    Gone,
}

impl SimDisk {
    /// Writes a shard; it is not durable yet. *Errors*: [`DiskError::Full`].
    pub fn write(
        &mut self,
        id: CheckpointId,
        rank: Rank,
        host: NodeId,
        floats: Vec<f32>,
    ) -> Result<(), DiskError> {
        if self.full {
            return Err(DiskError::Full);
        }
        self.files.insert((id, rank), File { floats, synced: false, host });
        Ok(())
    }

    /// Writes a shard and says what it would be once synced. *Errors*: [`DiskError::Full`].
    pub fn write_unsynced(
        &mut self,
        id: CheckpointId,
        rank: Rank,
        host: NodeId,
        floats: Vec<f32>,
    ) -> Result<ShardFile, DiskError> {
        let file =
            ShardFile { name: name(rank), bytes: Bytes(floats.len() as u64 * 4), digest: digest(&floats) };
        self.write(id, rank, host, floats).map(|()| file)
    }

    /// Makes a shard durable. *Errors*: it is not there, or the disk has become full.
    pub fn sync(&mut self, id: CheckpointId, rank: Rank) -> Result<ShardFile, DiskError> {
        if self.full {
            return Err(DiskError::Full);
        }
        let file = self.files.get_mut(&(id, rank)).ok_or_else(|| missing(id, rank))?;
        file.synced = true;
        Ok(ShardFile {
            name: name(rank),
            bytes: Bytes(file.floats.len() as u64 * 4),
            digest: digest(&file.floats),
        })
    }

    /// A host loses its power: what it had not synced is torn or gone.
    pub fn power_lost(&mut self, host: NodeId, unsynced: Unsynced) {
        self.files.retain(|_, file| file.synced || file.host != host || unsynced == Unsynced::Torn);
        for file in self.files.values_mut().filter(|file| !file.synced && file.host == host) {
            file.floats.truncate(file.floats.len() / 2);
            file.synced = true;
        }
    }

    /// Whether every shard that an order names is there, durable and as it says; what is wrong if not (S6).
    ///
    /// *Errors*: what is wrong, in words.
    pub fn check(&self, order: &ManifestOrder) -> Result<(), DiskError> {
        for (at, shard) in order.shards.iter().enumerate() {
            let rank = Rank(at as u32);
            let file = self.files.get(&(order.id, rank)).ok_or_else(|| missing(order.id, rank))?;
            if !file.synced || shard.name != name(rank) || digest(&file.floats) != shard.digest {
                return Err(DiskError::Damaged(format!("{} of {}", shard.name, order.id)));
            }
        }
        if order.shards.len() != order.membership.participants.len() {
            let (got, want) = (order.shards.len(), order.membership.participants.len());
            return Err(DiskError::Damaged(format!("{}: {got} of {want} shards", order.id)));
        }
        Ok(())
    }

    /// Renames a finished manifest into place. *Errors*: [`DiskError::Full`].
    pub fn rename(&mut self, order: ManifestOrder) -> Result<(), DiskError> {
        if self.full {
            return Err(DiskError::Full);
        }
        self.manifests.insert(order.id, order);
        Ok(())
    }

    /// Every checkpoint that has a manifest.
    pub fn manifests(&self) -> impl Iterator<Item = CheckpointId> {
        self.manifests.keys().copied()
    }

    /// What a manifest says, if there is one of this name.
    pub fn manifest(&self, id: CheckpointId) -> Option<&ManifestOrder> {
        self.manifests.get(&id)
    }

    /// Reads a checkpoint, every digest verified: all floats of the state, and the digest that they must have.
    ///
    /// *Errors*: what is missing or damaged.
    pub fn read(&self, id: CheckpointId) -> Result<(Vec<f32>, Digest), DiskError> {
        let order = self.manifests.get(&id).ok_or_else(|| DiskError::Missing(id.to_string()))?;
        self.check(order)?;
        let ranks = (0..order.shards.len() as u32).map(Rank);
        let floats = ranks.flat_map(|rank| self.files[&(id, rank)].floats.iter().copied());
        Ok((floats.collect(), order.state_digest))
    }
}

fn missing(id: CheckpointId, rank: Rank) -> DiskError {
    DiskError::Missing(format!("{} of {id}", name(rank)))
}

fn name(rank: Rank) -> String {
    format!("rank-{:05}.safetensors", rank.0)
}

fn digest(floats: &[f32]) -> Digest {
    let mut hasher = Hasher::new();
    for float in floats {
        hasher.update(&float.to_le_bytes());
    }
    Digest(*hasher.finalize().as_bytes())
}

/// The floats of a state of `len` that one rank of `world` writes.
#[must_use]
pub fn share(len: usize, rank: Rank, world: u32) -> std::ops::Range<usize> {
    let at = |r: u32| len * r as usize / world as usize;
    at(rank.0)..at(rank.0 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::{Fingerprint, Membership, Participant};
    use dtrain_types::{Generation, Incarnation, MemberId, MicroRange, Step};

    const ID: CheckpointId = CheckpointId { generation: Generation(1), step: Step(7) };

    fn order(shards: Vec<ShardFile>) -> ManifestOrder {
        let participant = Participant {
            member: MemberId(0),
            incarnation: Incarnation(1),
            node: NodeId(1),
            address: None,
            sees_run_folder: true,
            range: MicroRange { lo: 0, hi: 1 },
        };
        let fingerprint =
            Fingerprint { isa: "scalar".into(), self_test: Digest([0; 32]), kernel_revision: 1 };
        ManifestOrder {
            id: ID,
            membership: Membership { participants: vec![participant; shards.len()], unmirrored: 0 },
            shards,
            digest: Digest([0; 32]),
            state_digest: Digest([7; 32]),
            fingerprint,
        }
    }

    fn written(disk: &mut SimDisk) -> Vec<ShardFile> {
        let half = |rank: u32| (Rank(rank), vec![rank as f32; 3]);
        let write = |(rank, floats)| {
            disk.write(ID, rank, NodeId(1), floats).expect("room");
            disk.sync(ID, rank).expect("room")
        };
        [0, 1].map(half).map(write).to_vec()
    }

    #[test]
    fn what_is_synced_and_named_by_a_manifest_is_read_again() {
        let mut disk = SimDisk::default();
        let shards = written(&mut disk);
        disk.power_lost(NodeId(1), Unsynced::Gone);
        disk.rename(order(shards)).expect("room");
        assert_eq!(disk.read(ID), Ok((vec![0.0, 0.0, 0.0, 1.0, 1.0, 1.0], Digest([7; 32]))));
    }

    #[test]
    fn what_was_not_synced_is_gone_or_torn_and_never_read() {
        for unsynced in [Unsynced::Gone, Unsynced::Torn] {
            let mut disk = SimDisk::default();
            let shards = written(&mut disk);
            disk.write(ID, Rank(1), NodeId(1), vec![1.0; 3]).expect("room");
            disk.power_lost(NodeId(1), unsynced);
            disk.rename(order(shards)).expect("room");
            assert!(disk.read(ID).is_err(), "{unsynced:?}");
        }
    }

    #[test]
    fn a_full_disk_takes_nothing() {
        let mut disk = SimDisk { full: true, ..SimDisk::default() };
        assert_eq!(disk.write(ID, Rank(0), NodeId(0), Vec::new()), Err(DiskError::Full));
        assert_eq!(disk.rename(order(Vec::new())), Err(DiskError::Full));
        assert_eq!(disk.manifests().count(), 0);
    }

    #[test]
    fn the_shares_of_all_ranks_are_the_whole() {
        for world in 1..9 {
            let shares: Vec<usize> = (0..world).flat_map(|rank| share(101, Rank(rank), world)).collect();
            assert_eq!(shares, (0..101).collect::<Vec<_>>());
        }
    }
}
