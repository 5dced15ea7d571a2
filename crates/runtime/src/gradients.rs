//! The gradients of a step: computed, added up, reduced over all ranks, and applied.
//!
//! It does not know what comes before or after a step, nor how an update is made with others.

use crate::broke::{Broke, data, engine, off, told_to_leave};
use crate::compute::Work;
use crate::data_plane::{DataPlane, Sums};
use crate::figures::{lend, sum_of_trailers};
use crate::gradient_slot::{DeviceSlot, GradientSlot, Offers};
use dtrain_collective::Op;
use dtrain_engine::{Begun, EngineError, Kept, UpdateInfo};
use dtrain_protocol::{Activity, Failure};
use dtrain_telemetry::profile::Doing;
use dtrain_types::{Merger, MicroBatch, MicroRange, Step, StepPlan, Trailer, Wire};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where the gradient of a pass goes.
#[derive(Clone, Copy)]
enum Place {
    /// A slot of the arena.
    Slot(usize),
    /// Where the replica keeps it, under this number.
    Kept(usize),
}

impl Work<'_> {
    /// The sum of what all ranks have computed; gives their trailer, and how long it waited for the others.
    pub(crate) fn reduce(&mut self, plan: &StepPlan) -> Result<(Trailer, Duration), Broke> {
        let controls = Arc::clone(&self.compute.controls);
        controls.set_activity(Activity::Reducing);
        self.compute.profiler.skip();
        let waited = Instant::now();
        let trailer = match self.plane.trailer_at_home() {
            Some(trailer) => trailer,
            None => self.all_reduce(plan)?,
        };
        let waited = waited.elapsed();
        self.compute.profiler.lap(Doing::Communication);
        controls.set_activity(Activity::Computing);
        Ok((trailer, waited))
    }

    /// Applies the sum, from wherever it lies.
    ///
    /// *Errors*: as `Replica::update`.
    pub(crate) fn update(&mut self, step: Step, trailer: &Trailer) -> Result<UpdateInfo, EngineError> {
        let Self { plane, compute, .. } = self;
        let (replica, Trailer { weight, samples, .. }) = (compute.parts.replica.as_mut(), *trailer);
        match plane.trailer_at_home().is_some() || plane.sums == Sums::OnDevice {
            true => replica.update_kept(step, weight, samples),
            false => replica.update(step, plane.backend.reduced(), weight, samples),
        }
    }

    /// The sum of all ranks' slots.
    fn all_reduce(&mut self, plan: &StepPlan) -> Result<Trailer, Broke> {
        let DataPlane { backend, trailers, sequence, .. } = &mut self.plane;
        let op = Op::AllReduce { micro_batches: plan.micro_batches, trailers };
        backend.start(*sequence, &op).map_err(off)?;
        backend.finish(*sequence).map_err(off)
    }

    /// Fills one slot per root with the sum of its micro-batches, merged like a binary counter: as many at once as the
    /// replica takes. Every node is rounded where it is made. Where the backend takes offers, the last pass hands on its part
    /// of the sum while it goes. A replica that keeps gradients adds them up for itself: in slots on its device, or in memory of
    /// its own, from which the sum of a root comes to its slot, if there is anybody to add it to.
    pub(crate) fn gradients(&mut self, plan: &StepPlan) -> Result<(), Broke> {
        self.plane.sequence.0 += 1;
        let known = self.plane.roots.iter().position(|(count, _)| *count == plan.micro_batches);
        let known = known.expect("every step length was prepared");
        let count = self.plane.roots[known].1.len();
        let travels = self.plane.sums != Sums::InReplica && !self.plane.stays_at_home(count);
        let takes = travels && self.plane.backend.takes_offers();
        let offers = self.compute.parts.bucket_bytes.filter(|_| takes);
        self.plane.trailers.clear();
        for index in 0..count {
            let root = self.plane.roots[known].1[index];
            let mut merger = Merger::default();
            let mut sums = self.plane.sums;
            for lo in (root.lo..root.hi).step_by(self.compute.parts.replica.about().group as usize) {
                let hi = (lo + self.compute.parts.replica.about().group).min(root.hi);
                let buffer = merger.next_buffer();
                let bucket = offers.filter(|_| hi == root.hi && index + 1 == count);
                if bucket.is_some() {
                    self.plane.note_merges(index, merger.clone(), hi - lo);
                }
                let place = match self.plane.keeps() {
                    true => Place::Kept(self.plane.kept(index, buffer)),
                    false => Place::Slot(self.plane.geometry.slot(index, buffer)),
                };
                self.plane.pending[buffer] = self.group(plan, MicroRange { lo, hi }, place, bucket)?;
                let Self { plane, compute, .. } = self;
                if bucket.is_some() {
                    sums = Sums::Offered;
                }
                let mut added = false;
                merger.push_subtree(hi - lo, |l, r| {
                    added = true;
                    plane.merge(&mut compute.parts, index, [l, r], sums);
                });
                if added {
                    compute.profiler.lap_on(Doing::Add, MicroBatch(lo));
                }
            }
            let Self { plane, compute, .. } = self;
            merger.finish(|l, r| plane.merge(&mut compute.parts, index, [l, r], sums));
            compute.profiler.lap(Doing::Add);
            plane.trailers.push(plane.pending[0]);
            if plane.sums == Sums::InReplica && !plane.stays_at_home(count) {
                let slot = plane.geometry.slot(index, 0);
                compute.parts.replica.bring(0, plane.backend.arena().lease(slot)).map_err(engine)?;
            }
        }
        Ok(())
    }

    /// Fills a place with the sum of some micro-batches, and hands it on in buckets of so many bytes if they are the last; gives
    /// the sum of their trailers.
    fn group(
        &mut self,
        plan: &StepPlan,
        group: MicroRange,
        place: Place,
        bucket: Option<usize>,
    ) -> Result<Trailer, Broke> {
        let Self { plane, loader, ahead, compute, .. } = self;
        let (controls, parts, profiler) = (&compute.controls, &mut compute.parts, &mut compute.profiler);
        let figures = &mut plane.figures[..group.len() as usize];
        let wire = parts.wire;
        let mut offers = bucket.map(|bucket_bytes| Offers {
            sequence: plane.sequence,
            micro_batches: plan.micro_batches,
            bucket_bytes,
            merges: &plane.merges,
            wire,
            rests: &mut plane.rests,
        });
        for (at, m) in (group.lo..group.hi).enumerate() {
            if controls.must_leave(compute.generation) {
                return Err(told_to_leave());
            }
            controls.set_activity(Activity::Loading);
            let batch = match ahead.take() {
                Some(batch) => batch,
                None => loader.next_batch().map_err(data)?.expect("the loader ends with the last step"),
            };
            assert_eq!(
                (batch.step(), batch.micro_batch()),
                (plan.step, MicroBatch(m)),
                "loader and loop agree"
            );
            controls.set_activity(Activity::Computing);
            profiler.lap_on(Doing::Data, MicroBatch(m));
            plane.checks[at] = batch.check();
            if figures.len() > 1 {
                parts.replica.lay(at, &lend(&batch)).map_err(engine)?;
                continue;
            }
            let (step, m, batch) = (plan.step, MicroBatch(m), lend(&batch));
            let begun = match place {
                Place::Slot(slot) => {
                    let (backend, offers) = (plane.backend.as_mut(), offers.take());
                    let mut to = GradientSlot::new(backend, slot, wire, offers, profiler);
                    let alone = parts.replica.begin(step, m, &batch, &mut to);
                    to.finish();
                    alone
                }
                Place::Kept(number) => {
                    let kept = Kept { number, elements: parts.replica.about().gradient_len() };
                    let mut to = DeviceSlot::new(plane.backend.as_mut(), kept, offers.take());
                    parts.replica.begin(step, m, &batch, &mut to)
                }
            };
            figures[0] = match begun.map_err(engine)? {
                Begun::Done(figures) => figures,
                Begun::UnderWay => {
                    // One that is not there yet is waited for when its turn comes, and not under another name.
                    *ahead = loader.ready_batch();
                    if let Some(next) = ahead {
                        let (step, m) = (next.step(), next.micro_batch());
                        parts.replica.take_ahead(step, m, &lend(next)).map_err(engine)?;
                    }
                    parts.replica.figures()
                }
            };
        }
        if let (Place::Slot(slot), true) = (place, figures.len() > 1) {
            // The replica rounds what it adds up.
            let mut to = GradientSlot::new(plane.backend.as_mut(), slot, Wire::F32, offers, profiler);
            let first = MicroBatch(group.lo);
            parts.replica.micro_batches(plan.step, first, wire, &mut to, figures).map_err(engine)?;
            to.finish();
        }
        profiler.passes(MicroBatch(group.lo));
        let stop = controls.stop_flag();
        Ok(sum_of_trailers(figures, &plane.checks, group.lo, stop))
    }

    /// Computes this rank's micro-batches again, one by one, to say which one made the gradient not finite.
    pub(crate) fn name_the_fault(&mut self, plan: &StepPlan) -> Failure {
        let step = plan.step;
        let range = self.plane.membership.range().within(plan.micro_batches);
        let parts = &mut self.compute.parts;
        let mut batch = parts.feed.batch();
        let mut found = None;
        for m in range.lo..range.hi {
            let gradient = self.plane.backend.arena().lease(0);
            let again =
                parts.feed.read_micro_batch(step, MicroBatch(m), &mut batch).map_err(data).and_then(|()| {
                    parts.replica.is_at_fault(step, MicroBatch(m), &lend(&batch), gradient).map_err(engine)
                });
            match again {
                Ok(false) => {}
                Ok(true) => {
                    found = Some(MicroBatch(m));
                    break;
                }
                Err(failure) => return failure,
            }
        }
        Failure::NonFinite { step, micro_batch: found }
    }
}
