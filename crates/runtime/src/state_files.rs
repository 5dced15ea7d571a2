//! The engine's state in the words of the checkpoint format: names, shapes and sections of every tensor.
//!
//! The engine does not know files and the checkpoint format does not know models; here they meet.

use dtrain_checkpoint::{Check, FileStore, Store, TensorSpec};
use dtrain_engine::{About, Layout, Replica, Section, State, Tensor};
use dtrain_protocol::CheckpointId;
use dtrain_types::Holding;
use std::path::Path;

/// Every tensor of a replica's state, as a checkpoint names it: `model.0.weight`, `stats.1.running_mean`,
/// `optimizer.m.0.weight`.
#[must_use]
pub fn specs(replica: &dyn Replica) -> Vec<TensorSpec> {
    let About { layout, state, .. } = replica.about();
    Section::ALL
        .into_iter()
        .zip(state.lengths())
        .filter(|(_, len)| *len > 0)
        .flat_map(|(section, _)| section_specs(layout, section))
        .collect()
}

fn section_specs(layout: &Layout, section: Section) -> Vec<TensorSpec> {
    let (of, prefix) = match section {
        Section::Parameters => (Section::Parameters, "model"),
        Section::Stats => (Section::Stats, "stats"),
        Section::First if !layout.kept.is_empty() => (Section::First, "optimizer"),
        Section::First => (Section::Parameters, "optimizer.m"),
        Section::Second => (Section::Parameters, "optimizer.v"),
        Section::Average => (Section::Parameters, "average"),
        Section::Frozen => (Section::Frozen, "model"),
    };
    let all = layout.tensors.iter().chain(&layout.kept).chain(&layout.frozen);
    let tensors = all.filter(|tensor| tensor.section == of);
    let spec =
        |t: &Tensor| TensorSpec::new(format!("{prefix}.{}", t.name), &t.shape, section.name(), t.offset);
    tensors.map(spec).collect()
}

/// The parameters that stay as they are and lie apart, as the file of a run names them: as a checkpoint would.
#[must_use]
pub fn frozen_specs(layout: &Layout) -> Vec<TensorSpec> {
    section_specs(layout, Section::Frozen)
}

/// Loads a checkpoint into the replica: into fresh memory first, swapped in when it is whole and its digest agrees
/// with the manifest's (S12).
///
/// *Errors*: a sentence that names what is wrong. *Blocks* on the disk.
pub fn load(
    run_dir: &Path,
    id: CheckpointId,
    specs: &[TensorSpec],
    replica: &mut dyn Replica,
) -> Result<(), String> {
    let checkpoint = FileStore::new(run_dir).open(id, Check::Digests).map_err(|damage| damage.to_string())?;
    let mut state = State::zeros(replica.about().state);
    for section in Section::ALL {
        if !state.section(section).is_empty() {
            let loaded = checkpoint.load_into(specs, section.name(), state.section_mut(section));
            loaded.map_err(|damage| damage.to_string())?;
        }
    }
    state.applied = id.step;
    let (got, wanted) = (state.state_digest(), checkpoint.manifest().state_digest);
    if got != wanted.0 {
        return Err(format!("checkpoint {id} was read whole, but its state has another digest than it says"));
    }
    replica.swap_state(&mut state).map_err(|error| error.to_string())
}

/// Loads what every rank has of a checkpoint, and what holders alone have of these shards. The digest of each file is compared; that of the state would take
/// all of it.
///
/// *Errors*: a sentence that names what is wrong. *Blocks* on the disk.
pub fn load_shards(
    run_dir: &Path,
    id: CheckpointId,
    specs: &[TensorSpec],
    replica: &mut dyn Replica,
    holding: &Holding,
) -> Result<(), String> {
    let checkpoint = FileStore::new(run_dir).open(id, Check::Digests).map_err(|damage| damage.to_string())?;
    let lengths = replica.about().state.lengths();
    let sharding = replica.sharding().ok_or("this replica holds no shards")?;
    let words = |error: dtrain_engine::EngineError| error.to_string();
    let mut held = sharding.prepare(holding).map_err(words)?;
    for (section, len) in Section::ALL.into_iter().zip(lengths).filter(|(_, len)| *len > 0) {
        let read = if sharding.holds(section) {
            let runs = holding.elements(len);
            checkpoint.read(specs, section.name(), len, |from, values| {
                for run in &runs {
                    let both = run.start.max(from)..run.end.min(from + values.len());
                    if !both.is_empty() {
                        let part = &values[both.start - from..both.end - from];
                        held.part_mut(section, both).copy_from_slice(part);
                    }
                }
            })
        } else {
            let mut written = Ok(());
            let read = checkpoint.read(specs, section.name(), len, |from, values| {
                if written.is_ok() {
                    written = sharding.write(section, from, values);
                }
            });
            written.map_err(words)?;
            read
        };
        read.map_err(|damage| damage.to_string())?;
    }
    sharding.adopt(held, id.step).map_err(words)
}
