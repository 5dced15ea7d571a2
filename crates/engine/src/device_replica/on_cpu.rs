//! The CPU as a device whose memory is out of the host's reach, for tests: it counts what goes to and fro.

use super::*;
use crate::cpu::Cpu;
use crate::device::{Device, LossSums, NORM_BLOCK};
use crate::flat::Flat;
use crate::optimizer::{Factors, Rule};
use crate::passes::{Divisor, Reduced, Seen, look, settle};
use crate::schedule::LrSchedule;
use crate::settling::{Findings, UpdateScalars, Verdict};
use dtrain_types::{Bytes, DeviceMemory, Merger, Trailer, word_to_floats};
use std::cell::Cell;

/// The CPU, as if its memory were out of the host's reach.
impl OwnMemory for Cpu {
    type Floats = Flat;
    type Words = Vec<u32>;
    type Pending = Findings;

    fn floats(&self, len: usize) -> Result<Flat, EngineError> {
        TAKEN.with(|taken| taken.set(taken.get() + len));
        Ok(Flat::zeros(len))
    }
    fn words(&self, len: usize) -> Result<Vec<u32>, EngineError> {
        TAKEN.with(|taken| taken.set(taken.get() + len));
        Ok(vec![0; len])
    }
    fn slot(_: &DeviceMemory) -> Option<Flat> {
        None
    }
    fn look(memory: &Flat) -> &[f32] {
        memory
    }
    fn take(memory: &mut Flat) -> &mut [f32] {
        memory
    }
    fn ids(memory: &Vec<u32>) -> &[u32] {
        memory
    }
    fn send_to(&self, from: &[f32], to: &mut Flat, at: usize) -> Result<(), EngineError> {
        SENT.with(|sent| sent.set(sent.get() + 1));
        to[at..at + from.len()].copy_from_slice(from);
        Ok(())
    }
    fn send_ids(&self, from: &[u32], to: &mut Vec<u32>) -> Result<(), EngineError> {
        SENT.with(|sent| sent.set(sent.get() + 1));
        to[..from.len()].copy_from_slice(from);
        Ok(())
    }
    fn send_ahead(&self, from: &[f32], to: &mut Flat) -> Result<(), EngineError> {
        AHEAD.with(|ahead| ahead.set(ahead.get() + 1));
        self.send(from, to)
    }
    fn send_ids_ahead(&self, from: &[u32], to: &mut Vec<u32>) -> Result<(), EngineError> {
        AHEAD.with(|ahead| ahead.set(ahead.get() + 1));
        self.send_ids(from, to)
    }
    fn join_ahead(&self) -> Result<(), EngineError> {
        Ok(())
    }
    fn fetch_from(&self, from: &Flat, at: usize, to: &mut [f32]) -> Result<(), EngineError> {
        FETCHED.with(|fetched| fetched.set(fetched.get() + to.len()));
        to.copy_from_slice(&from[at..at + to.len()]);
        Ok(())
    }
    fn copy_to(&self, from: &[f32], to: &mut Flat, at: usize) {
        to[at..at + from.len()].copy_from_slice(from);
    }
    fn squares(&self, g: &[f32], scale: f32, to: &mut Flat) {
        for (block, words) in g.chunks(NORM_BLOCK).zip(to.chunks_exact_mut(2)) {
            words.copy_from_slice(&word_to_floats(self.sum_of_squares(block, scale).to_bits()));
        }
    }
    fn peak_memory(&self) -> Bytes {
        Bytes(4 * TAKEN.get() as u64)
    }
    fn keep_losses(&self, _: usize) -> Result<(), EngineError> {
        Ok(())
    }
    fn loss_scale(&self) -> f32 {
        SCALE.get()
    }
    fn set_loss_scale(&self, factor: f32) -> Result<(), EngineError> {
        SCALE.set(factor);
        Ok(())
    }
    fn settle(
        &self,
        update: &Settling<'_>,
        normaliser: Normaliser<'_, LossSums>,
        gradient: &[f32],
        stats: &mut [f32],
    ) -> Result<Option<UpdateScalars<f32>>, EngineError> {
        let Settling { facts, clip_norm, samples } = *update;
        let (sums, non_finite) = match normaliser {
            Normaliser::Known(weight) => (LossSums { weight, ..LossSums::default() }, None),
            Normaliser::Losses(losses) => added_up(losses),
        };
        let scale = facts.loss_scale(stats);
        let divisor = Divisor { weight: sums.weight, scale };
        let Seen { squares, stats_finite } =
            look(self, facts, &Reduced::<Cpu> { gradient, samples, divisor });
        let optimizer = Optimizer { clip_norm, ..optimizer() };
        let settled = settle(facts, &optimizer, Step(1), divisor, Seen { squares, stats_finite });
        let settled = settled.ok().filter(|_| non_finite.is_none() && !HALTED.get());
        HALTED.set(settled.is_none());
        let verdict = match &settled {
            None => Verdict::Halted,
            Some(settled) if settled.scale.is_none() => Verdict::Skipped,
            Some(_) => Verdict::Made,
        };
        if let Some(next) = settled.and_then(|settled| settled.info.loss_scale) {
            stats[facts.stats..].copy_from_slice(&next.elements());
            SCALE.set(next.factor);
        }
        let factor = settled.and_then(|settled| settled.scale);
        let scalars = |gradient| {
            let factors = Factors::known(gradient);
            UpdateScalars { factors, stats: (1.0 / samples as f64) as f32 }
        };
        FOUND.set(Some(Findings { sums, non_finite, squares, stats_finite, verdict }));
        Ok(factor.map(scalars))
    }
    fn send_findings(&self) -> Result<Findings, EngineError> {
        Ok(FOUND.take().expect("an update was settled"))
    }
    fn findings(&self, of: Findings) -> Result<Findings, EngineError> {
        ASKED.with(|asked| asked.set(asked.get() + 1));
        Ok(of)
    }
    fn go_on(&self) -> Result<(), EngineError> {
        HALTED.set(false);
        Ok(())
    }
}

/// What the losses of this thread's devices are multiplied by from now on.
pub(super) fn scale(factor: f32) {
    SCALE.set(factor);
}

/// Clips and averages, so that all that an update does is seen.
pub(super) fn optimizer() -> Optimizer {
    Optimizer {
        clip_norm: Some(1.0),
        ema: Some(0.9),
        ..Optimizer::new(Rule::adamw(), LrSchedule::constant(1e-2))
    }
}

/// The sum along the tree, and the first that is not finite.
pub(super) fn added_up(losses: &[LossSums]) -> (LossSums, Option<u32>) {
    let leaf = |(at, sums): (usize, &LossSums)| {
        BatchFigures { sums: *sums, samples: 0 }.trailer(MicroBatch(at as u32), 0)
    };
    let mut merger = Merger::default();
    let mut pending = vec![Trailer::EMPTY; Merger::buffers(losses.len() as u32)];
    for trailer in losses.iter().enumerate().map(leaf) {
        pending[merger.next_buffer()] = trailer;
        merger.push(|left, right| pending[left] = pending[left].merge(&pending[right]));
    }
    merger.finish(|left, right| pending[left] = pending[left].merge(&pending[right]));
    let Trailer { loss, weight, predictions: counted, correct, non_finite, .. } = pending[0];
    (LossSums { loss, weight, counted, correct }, (non_finite != Trailer::ALL_FINITE).then_some(non_finite))
}

thread_local! {
    /// Elements of memory that was taken.
    pub(super) static TAKEN: Cell<usize> = const { Cell::new(0) };
    /// Elements that came to the host.
    pub(super) static FETCHED: Cell<usize> = const { Cell::new(0) };
    /// Lists that went to the device, and those of them that went ahead.
    pub(super) static SENT: Cell<usize> = const { Cell::new(0) };
    pub(super) static AHEAD: Cell<usize> = const { Cell::new(0) };
    /// Findings that were asked for.
    pub(super) static ASKED: Cell<usize> = const { Cell::new(0) };
    /// What losses are multiplied by, and whether an update has halted.
    pub(super) static SCALE: Cell<f32> = const { Cell::new(1.0) };
    static FOUND: Cell<Option<Findings>> = const { Cell::new(None) };
    static HALTED: Cell<bool> = const { Cell::new(false) };
}
