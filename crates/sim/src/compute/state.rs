//! The state: made, read from a checkpoint, or copied from peers window by window.

use super::Compute;
use super::doing::{DIGEST_FLOATS, Doing, StateFrom};
use super::tools::Tools;
use super::words::{Ask, News, Work};
use crate::compute::digest_as_floats;
use crate::job::{Engine, unflatten};
use crate::sabotage::Sabotage;
use dtrain_collective::{Arena, Op};
use dtrain_engine::State;
use dtrain_protocol::{Digest, Failure, Loaded, StartFrom};
use dtrain_types::Holding;

impl Compute {
    pub(super) fn take_from(&mut self, tools: &mut Tools<'_>, from: StartFrom) {
        let Some(generation) = self.plane.as_ref().map(|plane| plane.generation) else { return };
        let state = match from {
            StartFrom::Fresh => tools.engine.initial(),
            StartFrom::Checkpoint(id) => match tools.disk.read(id) {
                Ok((floats, digest)) => {
                    let mut state = tools.engine.blank();
                    unflatten(&floats, id.step, &mut state);
                    if Digest(state.state_digest()) != digest {
                        let text = format!("checkpoint {id} has another digest than its manifest");
                        return tools.tell(News::Failed(generation, Failure::Setup(text)));
                    }
                    state
                }
                Err(error) => {
                    let failure = Failure::Setup(format!("checkpoint {id}: {error}"));
                    return tools.tell(News::Failed(generation, failure));
                }
            },
        };
        if self.sharer.is_some() {
            self.state = Some(state);
            return self.publish(tools);
        }
        if self.shards.is_some() {
            let is_read = from != StartFrom::Fresh;
            return self.begin_shards(tools, is_read.then_some(state));
        }
        self.swap(tools, state, StateFrom::Checkpoint);
        self.told_loaded(tools);
    }

    fn swap(&mut self, tools: &mut Tools<'_>, state: State, from: StateFrom) {
        let Some(generation) = self.plane.as_ref().map(|plane| plane.generation) else { return };
        let (step, state_digest) = (state.applied, Digest(state.state_digest()));
        self.state = Some(state);
        let copied = from == StateFrom::Peer;
        tools.asks.push(Ask::Swapped { generation, step, state_digest, copied });
    }

    pub(super) fn told_loaded(&mut self, tools: &mut Tools<'_>) {
        let (Some(state), Some(plane)) = (&self.state, &self.plane) else { return };
        let (generation, applied) = (plane.generation, state.applied);
        let state_digest = Digest(state.state_digest());
        let holding = Holding::whole();
        tools.tell(News::Loaded(Loaded { generation, applied, holding, state_digest }));
    }

    /// Begins to copy the next window: one gradient's length of floats, and the digest at the end.
    pub(super) fn begin_window(&mut self, tools: &mut Tools<'_>) {
        let (Doing::Copy(copy), Some(plane)) = (&self.doing, &mut self.plane) else { return };
        let slot = Self::arena(plane, tools).lease(0);
        let from = copy.window * slot.len();
        if from < copy.floats.len() {
            let part = &copy.floats[from..(from + slot.len()).min(copy.floats.len())];
            slot[..part.len()].copy_from_slice(part);
        } else {
            slot[..DIGEST_FLOATS].copy_from_slice(&copy.digest);
        }
        plane.sequence += 1;
        plane.gathering = false;
        let (sources, targets) = (copy.sources.clone(), copy.targets.clone());
        self.start(tools, &Op::Copy { sources: &sources, targets: &targets, len: usize::MAX });
    }

    /// A window is copied.
    pub(super) fn end_window(&mut self, tools: &mut Tools<'_>) {
        let (Doing::Copy(copy), Some(plane)) = (&mut self.doing, &mut self.plane) else { return };
        let is_target = copy.targets.contains(&plane.rank);
        let len = flat_len(tools.engine);
        let slot = Self::arena(plane, tools).lease(0);
        let windows = len.div_ceil(slot.len());
        if is_target && copy.window < windows {
            let part = slot.len().min(len - copy.window * slot.len());
            copy.floats.extend_from_slice(&slot[..part]);
        } else if is_target {
            copy.digest.copy_from_slice(&slot[..DIGEST_FLOATS]);
        }
        copy.window += 1;
        if copy.window <= windows {
            return self.work(tools, Work::Window);
        }
        let Doing::Copy(copy) = std::mem::replace(&mut self.doing, Doing::Rest) else { return };
        if is_target {
            let mut fresh = tools.engine.blank();
            unflatten(&copy.floats, copy.step, &mut fresh);
            // Fresh memory becomes the state only when it is whole (S12).
            let half = self.sabotage == Some(Sabotage::HalfCopy);
            if half {
                fresh.section_mut(dtrain_engine::Section::Second).fill(0.0);
            }
            if !half && digest_as_floats(fresh.state_digest()) != copy.digest {
                return self
                    .break_off(tools, "the copied state has another digest than its source".to_owned());
            }
            self.swap(tools, fresh, StateFrom::Peer);
        }
        self.told_loaded(tools);
    }
}

fn flat_len(engine: &Engine) -> usize {
    (engine.blank().bytes() / 4) as usize
}
