//! A small state, and saving it the way a run does: every rank its slice, then one commit.

#![allow(dead_code, reason = "each test file uses its own part")]

use dtrain_checkpoint::{
    Checkpoint, CheckpointId, Digest, FileStore, LockError, MANIFEST_VERSION, Manifest, Owner, PARAMETERS,
    STATS, Store, StoreError, TensorData, TensorSpec, slice_for,
};
use dtrain_types::{Epoch, Generation, Rank, Seed, Step, WorldSize};
use serde_json::json;

/// Owns everything.
pub struct Always;

impl Owner for Always {
    fn confirm(&self) -> Result<(), LockError> {
        Ok(())
    }
}

pub const SECTIONS: [&str; 4] = [PARAMETERS, STATS, "optimizer.m", "optimizer.v"];

/// A state whose values tell its step, with a gap of alignment in each section.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub specs: Vec<TensorSpec>,
    pub buffers: Vec<Vec<f32>>,
}

impl State {
    pub fn new(step: u64) -> Self {
        let mut specs = Vec::new();
        for section in SECTIONS {
            let prefix = section.replace(PARAMETERS, "model");
            let spec = |name: &str, shape: &[usize], at| {
                TensorSpec::new(format!("{prefix}.{name}"), shape, section, at)
            };
            specs.extend([
                spec("0.weight", &[5, 3], 0),
                spec("0.bias", &[3], 16),
                spec("1.scale", &[], 20),
                spec("2.none", &[0, 4], 21),
                spec("3.weight", &[7, 11], 24),
            ]);
        }
        let mut buffers = vec![vec![0.0; 101]; SECTIONS.len()];
        for (i, spec) in specs.iter().enumerate() {
            let section = SECTIONS.iter().position(|section| *section == spec.section).unwrap();
            for (j, value) in buffers[section][spec.offset..spec.end()].iter_mut().enumerate() {
                *value = (step * 1000 + i as u64 * 100 + j as u64) as f32 * 0.37 - 11.0;
            }
        }
        Self { specs, buffers }
    }

    fn data(&self, spec: &TensorSpec) -> &[f32] {
        let section = SECTIONS.iter().position(|section| *section == spec.section).unwrap();
        &self.buffers[section][spec.offset..spec.end()]
    }

    /// The digest for people, computed the slow way.
    pub fn digest(&self) -> Digest {
        let models = self.specs.iter().filter(|spec| spec.section == PARAMETERS);
        let stats = self.specs.iter().filter(|spec| spec.section == STATS);
        let bytes: Vec<u8> =
            models.chain(stats).flat_map(|s| self.data(s)).flat_map(|v| v.to_le_bytes()).collect();
        dtrain_checkpoint::hash(&bytes)
    }

    pub fn manifest(&self, id: CheckpointId) -> Manifest {
        let bits =
            json!({ "seed": 7, "optimizer": { "lr": 0.1 + 0.2, "kind": "adamw" }, "model": ["cnn", null] });
        Manifest {
            version: MANIFEST_VERSION,
            id,
            run: "digits".to_owned(),
            parent: None,
            seed: Seed(7),
            epoch: Epoch(0),
            bits: bits.as_object().unwrap().clone(),
            fingerprint: "scalar".to_owned(),
            reduce: "exact".to_owned(),
            ledger: dtrain_checkpoint::hash(b"a line"),
            metrics: json!({ "val_accuracy": 0.875 }).as_object().unwrap().clone(),
            state_digest: dtrain_checkpoint::hash(format!("{:?}", self.buffers).as_bytes()),
            digest: self.digest(),
            created: "2026-11-20T13:00:00Z".to_owned(),
            revision: "test".to_owned(),
            stopping: None,
            preparation: None,
            frozen: None,
            shards: Vec::new(),
            tensors: self.specs.clone(),
        }
    }

    /// Writes the shards of all ranks; gives the manifest that would be committed.
    pub fn write(&self, store: &FileStore, id: CheckpointId, world: u32) -> Result<Manifest, StoreError> {
        store.abandon(id)?;
        let mut manifest = self.manifest(id);
        for rank in 0..world {
            store.begin(id)?;
            let slice = &self.specs[slice_for(Rank(rank), WorldSize(world), &self.specs)];
            if !slice.is_empty() {
                let tensor = |s: &TensorSpec| (s.name.clone(), s.shape.clone(), self.data(s).to_vec());
                let tensors: Vec<_> = slice.iter().map(tensor).collect();
                // In two parts, as the owners of a tensor may have it.
                let parts: Vec<_> = tensors
                    .iter()
                    .map(|(.., data)| data.split_at(data.len() / 3))
                    .map(<[_; 2]>::from)
                    .collect();
                let tensors: Vec<_> = tensors
                    .iter()
                    .zip(&parts)
                    .map(|((name, shape, _), data)| TensorData { name, shape, data })
                    .collect();
                manifest.shards.push(store.write_shard(id, Rank(rank), &tensors)?.sync()?);
            }
        }
        Ok(manifest)
    }

    pub fn save(&self, store: &FileStore, id: CheckpointId, world: u32) -> Result<Manifest, StoreError> {
        let manifest = self.write(store, id, world)?;
        store.commit(&manifest, &Always)?;
        Ok(manifest)
    }

    /// Reads a checkpoint back.
    pub fn load(checkpoint: &Checkpoint) -> Self {
        let specs = checkpoint.manifest().tensors.clone();
        let mut buffers = vec![vec![0.0; 101]; SECTIONS.len()];
        for (section, buffer) in SECTIONS.iter().zip(&mut buffers) {
            checkpoint.load_into(&specs, section, buffer).unwrap();
        }
        Self { specs, buffers }
    }
}

pub fn id(generation: u64, step: u64) -> CheckpointId {
    CheckpointId { generation: Generation(generation), step: Step(step) }
}
