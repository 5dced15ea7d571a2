//! A state that the ranks of a host share: how a rank comes by it, its share of an update, and how it leaves.
//!
//! What is done to the memory is the engine's own code; what comes when is the agenda's. This file does neither.

use super::Compute;
use super::doing::Doing;
use super::tools::Tools;
use super::words::{Ask, News, Work};
use crate::memory::HostMemory;
use crate::sabotage::Sabotage;
use dtrain_collective::Op;
use dtrain_engine::{Sum, UpdateShare};
use dtrain_protocol::{Digest, Failure, Loaded, Opening, ResumePoint, StateSource, StepRecord};
use dtrain_types::{Holding, Step};

impl Compute {
    /// Does what this rank has to do to the state before all adopt it.
    pub(super) fn open(&mut self, tools: &mut Tools<'_>, opening: Opening, resume_point: &ResumePoint) {
        match (opening, &resume_point.source) {
            (Opening::Publish, StateSource::Start(from)) => {
                self.doing = Doing::Load(*from);
                self.work(tools, Work::Load);
            }
            (Opening::Complete, _) if self.sabotage != Some(Sabotage::Uncompleted) => {
                self.doing = Doing::Complete;
                self.work(tools, Work::Load);
            }
            _ => self.meet_to_open(tools),
        }
    }

    pub(super) fn meet_to_open(&mut self, tools: &mut Tools<'_>) {
        self.doing = Doing::Open;
        self.host_give(tools, &Op::Barrier);
    }

    /// Lays out the state that was loaded or made.
    pub(super) fn publish(&mut self, tools: &mut Tools<'_>) {
        let (Some(sharer), Some(state), Some(memory)) =
            (&mut self.sharer, &self.state, tools.memory.as_deref_mut())
        else {
            return;
        };
        sharer.forget();
        sharer.publish(&mut memory.state, state);
        self.meet_to_open(tools);
    }

    /// Completes what was decided and left.
    pub(super) fn complete(&mut self, tools: &mut Tools<'_>) {
        self.complete_update(tools);
        self.meet_to_open(tools);
    }

    pub(super) fn complete_update(&mut self, tools: &mut Tools<'_>) {
        let (Some(sharer), Some(memory)) = (&mut self.sharer, tools.memory.as_deref_mut()) else { return };
        let HostMemory { slots, state, .. } = memory;
        let done = sharer.complete(&tools.engine.update_rule(), state, slots[0].slot(0));
        done.expect("what was decided is finite");
    }

    /// All are here: this is the state from now on.
    pub(super) fn adopt(&mut self, tools: &mut Tools<'_>) {
        let (Some(sharer), Some(plane), Some(memory)) =
            (&mut self.sharer, &self.plane, tools.memory.as_deref_mut())
        else {
            return;
        };
        let (generation, step) = (plane.generation, plane.resume_point);
        if !sharer.adopt(&memory.state, step) {
            let text = format!("the state of step {step} is not in the memory of this host");
            return tools.tell(News::Failed(generation, Failure::Setup(text)));
        }
        self.state = None;
        let state_digest = Digest(memory.state.state(step).state_digest());
        tools.asks.push(Ask::Swapped { generation, step, state_digest, copied: false });
        let holding = Holding::whole();
        tools.tell(News::Loaded(Loaded { generation, applied: step, holding, state_digest }));
    }

    /// Looks at this rank's share of the sum. From here on its peers can decide the update.
    pub(super) fn measure(&mut self, tools: &mut Tools<'_>, step: Step) {
        let record = self.record(tools, step);
        let (Some(sharer), Some(plane), Some(memory)) =
            (&mut self.sharer, &self.plane, tools.memory.as_deref_mut())
        else {
            return;
        };
        let (weight, samples) = (record.trailer.weight, record.trailer.samples);
        let share = UpdateShare { index: plane.rank.index(), of: plane.members.participants.len() };
        let HostMemory { slots, state, .. } = memory;
        let sum = Sum { gradient: slots[0].slot(0), weight, samples };
        self.agenda.handle_measured(record);
        sharer.measure(&tools.engine.update_rule(), state, step, sum, share);
    }

    /// Decides the update if nobody has, and does this rank's share of it.
    pub(super) fn update_share(&mut self, tools: &mut Tools<'_>, _: Step) {
        if !self.write_share(tools) && self.quit.is_none() {
            // The state was closed: the next generation is on its way.
            self.break_off(tools, "the generation is over".to_owned());
        }
    }

    pub(super) fn write_share(&mut self, tools: &mut Tools<'_>) -> bool {
        let (Some(sharer), Some(memory)) = (&mut self.sharer, tools.memory.as_deref_mut()) else {
            return false;
        };
        let HostMemory { slots, state, .. } = memory;
        let (rule, sum) = (tools.engine.update_rule(), slots[0].slot(0));
        if let Some(computed) = &mut self.computed {
            computed.sum = sum.to_vec();
        }
        sharer.settle(&rule, state).expect("it is finite");
        sharer.update_share(&rule, state, sum)
    }

    /// All have done their shares.
    pub(super) fn commit(&mut self, tools: &mut Tools<'_>, step: Step) {
        let record = self.record(tools, step);
        let (Some(sharer), Some(plane), Some(memory)) =
            (&mut self.sharer, &self.plane, tools.memory.as_deref_mut())
        else {
            return;
        };
        sharer.commit(step);
        let info = sharer.settle(&tools.engine.update_rule(), &memory.state).expect("it is finite");
        let state_digest = Digest(memory.state.state(step).state_digest());
        // As it was when it was used: by now the first rank may write the next step's into the slot.
        let gradient = std::mem::take(&mut self.computed.as_mut().expect("a step is in hand").sum);
        let generation = plane.generation;
        tools.asks.push(Ask::Updated { generation, step, gradient, needed: None, state_digest });
        let (lr, gradient_norm) = (info.lr, info.gradient_norm);
        self.committed(tools, StepRecord { lr, gradient_norm, ..record });
    }

    /// Leaves a shared state: no update begins in it any more.
    pub(super) fn close(&mut self, tools: &mut Tools<'_>) {
        if let (Some(sharer), Some(memory)) = (&mut self.sharer, tools.memory.as_deref_mut())
            && self.sabotage != Some(Sabotage::Unclosed)
        {
            sharer.close(&memory.state);
        }
    }

    /// Tells of a step that others decided while this rank left it.
    pub(super) fn tell_decided(&mut self, tools: &mut Tools<'_>, record: StepRecord) {
        let (Some(sharer), Some(memory)) = (&mut self.sharer, tools.memory.as_deref_mut()) else { return };
        let info = sharer.settle(&tools.engine.update_rule(), &memory.state).expect("it is finite");
        let (lr, gradient_norm) = (info.lr, info.gradient_norm);
        tools.tell(News::Step(StepRecord { lr, gradient_norm, ..record }));
    }

    /// The state in hand, as a copy where it is shared.
    pub(super) fn lend_state(&mut self, tools: &Tools<'_>) {
        if let (Some(applied), Some(memory)) =
            (self.sharer.as_ref().and_then(|sharer| sharer.applied()), tools.memory.as_deref())
        {
            self.state = Some(memory.state.state(applied));
        }
    }
}
