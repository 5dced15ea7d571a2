//! The passes of a step: which micro-batches are computed together, into which subtree of which root, and what they say of themselves.
//!
//! It does not know who holds a gradient, nor what comes before or after a step.

use crate::batches::Batches;
use crate::broke::{Broke, data, engine, told_to_leave};
use crate::controls::Controls;
use crate::data_plane::DataPlane;
use crate::figures::{lend, sum_of_trailers};
use crate::gradients::{Pass, Subtree, Tools, Turn};
use crate::profiler::Profiler;
use crate::recipe::ComputeParts;
use crate::sharded_state::begin_rounds;
use dtrain_engine::{EngineError, MicroBatchGroup, StepOutcome, UpdateInfo, is_at_fault};
use dtrain_protocol::{Activity, Failure};
use dtrain_rounds::{Computed, Round};
use dtrain_telemetry::profile::Doing;
use dtrain_types::{Merger, MicroBatch, MicroRange, Step, StepPlan, Trailer};
use std::time::{Duration, Instant};

/// What the gradient of a step is computed, reduced and applied with.
pub struct Passes<'a> {
    /// Where the ranks meet.
    pub plane: &'a mut DataPlane,
    /// The samples.
    pub batches: &'a mut Batches,
    /// The replica, and how it is to be used.
    pub parts: &'a mut ComputeParts,
    /// What others want of this rank.
    pub controls: &'a Controls,
    /// Where the time goes.
    pub profiler: &'a mut Profiler,
}

impl Passes<'_> {
    /// Fills one subtree per root with the sum of its micro-batches, merged like a binary counter: as many at once as the
    /// replica takes. Every node is rounded where it is made. Tells how long it waited for others meanwhile, if they meet before the sums do.
    pub fn compute(&mut self, plan: &StepPlan) -> Result<Duration, Broke> {
        if self.plane.rounds.is_some() {
            return self.compute_in_rounds(plan);
        }
        self.plane.sequence.0 += 1;
        let known = self.plane.roots.iter().position(|(count, _)| *count == plan.micro_batches);
        let known = known.expect("every step length was prepared");
        let (count, group) = (self.plane.roots[known].1.len(), self.parts.replica.about().group);
        self.plane.trailers.clear();
        for index in 0..count {
            let root = self.plane.roots[known].1[index];
            let (mut merger, mut turn) = (Merger::default(), Turn::Early);
            for lo in (root.lo..root.hi).step_by(group as usize) {
                let range = MicroRange { lo, hi: (lo + group).min(root.hi) };
                if index + 1 == count && range.hi == root.hi {
                    turn = Turn::Last(self.plane.all_reduce(plan.micro_batches));
                    self.plane.gradients.note_merges(self.plane.geometry, index, merger.clone(), range.len());
                }
                let pending = merger.next_buffer();
                let into = Subtree { root: index, pending };
                self.plane.pending[pending] = self.pass(plan, range, into, turn)?;
                let mut added = false;
                merger.push_subtree(range.len(), |left, right| {
                    added = true;
                    self.merge(index, [left, right], turn);
                });
                if added {
                    self.profiler.lap_on(Doing::Add, MicroBatch(lo));
                }
            }
            merger.finish(|left, right| self.merge(index, [left, right], turn));
            self.profiler.lap(Doing::Add);
            let DataPlane { gradients, backend, trailers, pending, .. } = self.plane;
            trailers.push(pending[0]);
            gradients.close(index, backend.as_mut(), self.parts.replica.as_mut())?;
        }
        Ok(Duration::ZERO)
    }

    /// Computes one micro-batch a round, whose gradient goes to those who hold its shards while it is computed.
    fn compute_in_rounds(&mut self, plan: &StepPlan) -> Result<Duration, Broke> {
        let Self { plane, batches, parts, controls, profiler } = self;
        let (generation, micro_batches) = (plane.membership.generation, plan.micro_batches);
        let replica = parts.replica.as_mut();
        let mut trailers = std::mem::take(&mut plane.trailers);
        trailers.clear();
        begin_rounds(plane, replica)?;
        let mut out = plane.set_out();
        for number in 0..out.rounds().count(micro_batches) {
            if controls.must_leave(generation) {
                return Err(told_to_leave());
            }
            if out.broke_off() {
                break;
            }
            let round = Round { number, micro_batches };
            let m = out.rounds().micro_batch(number);
            if m >= micro_batches {
                controls.set_activity(Activity::Reducing);
                out.pass().take_part(replica, round);
                profiler.lap(Doing::Communication);
                continue;
            }
            controls.set_activity(Activity::Loading);
            let loaned = batches.next(plan.step, MicroBatch(m))?;
            controls.set_activity(Activity::Computing);
            profiler.lap_on(Doing::Data, MicroBatch(m));
            let range = MicroRange { lo: m, hi: m + 1 };
            let group = &MicroBatchGroup { micro_batches: range, wire: parts.wire, step: plan.step };
            let computed = Computed { group, batch: &lend(&loaned) };
            let figures = out.pass().compute(replica, computed, round).map_err(engine)?;
            profiler.passes(MicroBatch(m));
            trailers.push(sum_of_trailers(&[figures], &[loaned.check()], m, controls.stop_flag()));
        }
        controls.set_activity(Activity::Reducing);
        let waited = out.finish()?;
        profiler.lap(Doing::Communication);
        plane.trailers = trailers;
        Ok(waited)
    }

    /// Adds two pending subtrees of a root, and their trailers.
    fn merge(&mut self, root: usize, [left, right]: [usize; 2], turn: Turn) {
        let DataPlane { gradients, backend, pending, .. } = self.plane;
        let pair = [left, right].map(|pending| Subtree { root, pending });
        gradients.merge(pair, turn, backend.as_mut(), self.parts.replica.as_mut(), self.parts.wire);
        pending[left] = pending[left].merge(&pending[right]);
    }

    /// Computes some micro-batches at once into a subtree; gives the sum of their trailers.
    fn pass(
        &mut self,
        plan: &StepPlan,
        range: MicroRange,
        into: Subtree,
        turn: Turn,
    ) -> Result<Trailer, Broke> {
        let Self { plane, batches, parts, controls, profiler } = self;
        let group = MicroBatchGroup { step: plan.step, micro_batches: range, wire: parts.wire };
        let figures = &mut plane.figures[..range.len() as usize];
        for (at, m) in (range.lo..range.hi).map(MicroBatch).enumerate() {
            if controls.must_leave(plane.membership.generation) {
                return Err(told_to_leave());
            }
            controls.set_activity(Activity::Loading);
            let loaned = batches.next(plan.step, m)?;
            controls.set_activity(Activity::Computing);
            profiler.lap_on(Doing::Data, m);
            plane.checks[at] = loaned.check();
            let (batch, replica) = (&lend(&loaned), parts.replica.as_mut());
            if at + 1 < figures.len() {
                replica.prefetch(&group, m, batch).map_err(engine)?;
                continue;
            }
            let tools = Tools { backend: plane.backend.as_mut(), replica, batches, profiler };
            plane.gradients.fill(&Pass { group, batch, into, turn }, tools, figures)?;
        }
        profiler.passes(group.first());
        Ok(sum_of_trailers(figures, &plane.checks, range.lo, controls.stop_flag()))
    }

    /// The sum of all ranks; gives its trailer, and how long it waited for the others.
    pub fn reduce(&mut self, plan: &StepPlan) -> Result<(Trailer, Duration), Broke> {
        self.controls.set_activity(Activity::Reducing);
        self.profiler.skip();
        let begun = Instant::now();
        let trailer = match self.plane.rounds.is_some() {
            true => {
                let own = std::mem::take(&mut self.plane.trailers);
                let (rounds, mut wires) = self.plane.in_rounds();
                let sum = rounds.sum_trailers(&own, plan.micro_batches, &mut wires);
                self.plane.trailers = own;
                sum?
            }
            false => {
                let all_reduce = self.plane.all_reduce(plan.micro_batches);
                let DataPlane { gradients, backend, trailers, .. } = self.plane;
                gradients.reduce(all_reduce, trailers, backend.as_mut())?
            }
        };
        let waited = begun.elapsed();
        self.profiler.lap(Doing::Communication);
        self.controls.set_activity(Activity::Computing);
        Ok((trailer, waited))
    }

    /// Applies the sum, whose trailer this is, to a state of the replica's own. Gives nothing where that is told behind.
    ///
    /// *Errors*: as `Replica::update`.
    pub fn update(&mut self, step: Step, trailer: &Trailer) -> Result<Option<UpdateInfo>, EngineError> {
        let DataPlane { gradients, backend, .. } = self.plane;
        gradients.update(step, trailer, backend.as_mut(), self.parts.replica.as_mut())
    }

    /// What the oldest step came to that is told behind. *Blocks* for the device. *Errors*: of the device.
    pub fn outcome(&mut self) -> Result<StepOutcome, Failure> {
        let keeper =
            self.parts.replica.keeping().expect("steps are told behind by a replica that keeps gradients");
        let outcome = keeper.outcome().map_err(engine)?.expect("an update was given");
        self.profiler.lap(Doing::Compute);
        Ok(outcome)
    }

    /// Computes this rank's micro-batches again, one by one, to say which one made the gradient not finite.
    pub fn name_the_fault(&mut self, plan: &StepPlan) -> Failure {
        let found = match self.plane.rounds.is_some() {
            true => self.find_in_rounds(plan),
            false => self.find(plan),
        };
        match found {
            Ok(micro_batch) => Failure::NonFinite { step: plan.step, micro_batch },
            Err(Broke::Failed(failure)) => failure,
            // Others have found it, and left.
            Err(Broke::Off(_)) => Failure::NonFinite { step: plan.step, micro_batch: None },
        }
    }

    fn find(&mut self, plan: &StepPlan) -> Result<Option<MicroBatch>, Broke> {
        let range = self.plane.membership.range().within(plan.micro_batches);
        let mut batch = self.parts.feed.batch();
        for m in (range.lo..range.hi).map(MicroBatch) {
            let gradient = self.plane.backend.arena().lease(0);
            self.parts.feed.read_micro_batch(plan.step, m, &mut batch).map_err(data)?;
            let replica = self.parts.replica.as_mut();
            if is_at_fault(replica, plan.step, m, &lend(&batch), gradient).map_err(engine)? {
                return Ok(Some(m));
            }
        }
        Ok(None)
    }

    /// To the end: others need this rank for theirs.
    fn find_in_rounds(&mut self, plan: &StepPlan) -> Result<Option<MicroBatch>, Broke> {
        let mut batch = self.parts.feed.batch();
        let mut found = None;
        let mut out = self.plane.set_out();
        for number in 0..out.rounds().count(plan.micro_batches) {
            let replica = self.parts.replica.as_mut();
            let m = MicroBatch(out.rounds().micro_batch(number));
            let is_at_fault = match m.0 < plan.micro_batches {
                true => {
                    self.parts.feed.read_micro_batch(plan.step, m, &mut batch).map_err(data)?;
                    out.pass().is_at_fault(replica, plan.step, Some((m, &lend(&batch)))).map_err(engine)?
                }
                false => out.pass().is_at_fault(replica, plan.step, None).map_err(engine)?,
            };
            found = found.or(is_at_fault.then_some(m));
        }
        out.finish()?;
        Ok(found)
    }
}
