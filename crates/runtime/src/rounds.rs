//! A step in rounds, in which nobody has all of a gradient: in each of them every rank computes one micro-batch, and each window of what it computes
//! goes to those who hold its shards as soon as it is final. They add it up.
//!
//! All ranks go through the same windows in the same order; one that has no micro-batch in the last round takes part for what it holds. This file
//! does not know what is computed, nor what comes of the sum.

use crate::broke::Broke;
use crate::data_plane::move_floats;
use crate::folding::Folding;
use dtrain_collective::{Backend, Narrow, Op, Sequence, Take};
use dtrain_engine::{
    BatchFigures, BatchView, Begun, EngineError, Flat, Gradient, Held, MicroBatchGroup, Replica, UpdateShare,
    Windows, needed,
};
use dtrain_types::{Holders, Merger, MicroBatch, Rank, Step, Trailer, Wire};
use std::ops::Range;
use std::time::Duration;

/// Floats that carry a trailer.
const TRAILER: usize = 14;

/// What the ranks of a generation exchange in a round. See the file's comment.
pub struct Rounds {
    rank: usize,
    world: usize,
    /// What this rank needs of a sum.
    kept: Held,
    cuts: Vec<WindowCut>,
    /// Where a micro-batch writes its windows.
    memory: Flat,
    folding: Folding,
    /// Where the parts of the ranks begin in a slot, and the last one ends.
    starts: Vec<usize>,
}

/// A window, and what is exchanged of it.
struct WindowCut {
    elements: Range<usize>,
    /// Where it is written.
    place: Range<usize>,
    /// One after the other.
    pieces: Vec<Piece>,
}

/// As much of a window as a slot has room for beside those of all other ranks.
struct Piece {
    elements: Range<usize>,
    /// Who needs which elements of the ranks' pieces, one behind the other in a slot.
    narrow: Narrow,
    /// What this rank keeps of it: where that lies in a sum, and the first of it in the piece.
    keeps: Vec<(Range<usize>, usize)>,
}

/// What rounds follow from.
pub struct RoundsPlan<'a> {
    /// Who holds what.
    pub holders: &'a Holders,
    /// This rank, of how many.
    pub rank: (Rank, usize),
    /// The windows of a gradient.
    pub windows: &'a Windows,
    /// Elements of the parameters, and of a gradient.
    pub lengths: (usize, usize),
    /// Floats of a slot.
    pub slot: usize,
    /// The most of a step.
    pub micro_batches: u32,
    /// What every sum is rounded to.
    pub wire: Wire,
}

impl Rounds {
    /// The rounds of a generation.
    #[must_use]
    pub fn new(plan: &RoundsPlan<'_>) -> Self {
        let RoundsPlan { holders, rank: (rank, world), windows, lengths, slot, micro_batches, wire } = *plan;
        let (parameters, gradient) = lengths;
        let needs = |index: usize| {
            let share = UpdateShare { index, of: world };
            merged(needed(&holders.holding(Rank(index as u32)), share, parameters, gradient))
        };
        let needs: Vec<Held> = (0..world).map(|index| Held::of(needs(index))).collect();
        let kept = needs[rank.index()].clone();
        let most = (slot / world).max(1);
        let mut early = windows.longest();
        let cut = |window: &dtrain_engine::Window| {
            let (elements, len) = (window.elements.clone(), window.elements.len());
            let from = match window.begun {
                Begun::InTurn => 0,
                Begun::Early => {
                    early += len;
                    early - len
                }
            };
            let pieces = elements.clone().step_by(most);
            let piece =
                |start: usize| Piece::new(start..elements.end.min(start + most), &needs, rank.index());
            WindowCut { place: from..from + len, pieces: pieces.map(piece).collect(), elements }
        };
        Self {
            rank: rank.index(),
            world,
            cuts: windows.all().iter().map(cut).collect(),
            memory: Flat::zeros(windows.memory()),
            folding: Folding::new(kept.elements(), micro_batches, wire),
            starts: Vec::with_capacity(world + 1),
            kept,
        }
    }

    /// How many a step of so many micro-batches has.
    #[must_use]
    pub fn count(&self, micro_batches: u32) -> u32 {
        micro_batches.div_ceil(self.world as u32)
    }

    /// The micro-batch of this rank in a round, if the step has so many.
    #[must_use]
    pub fn micro_batch(&self, round: u32) -> u32 {
        round * self.world as u32 + self.rank as u32
    }

    /// What this rank keeps of a sum.
    #[must_use]
    pub fn kept(&self) -> &Held {
        &self.kept
    }

    /// Begins a step, in memory for what is kept of the sum.
    pub fn begin(&mut self, memory: Flat) {
        self.folding.give(memory);
    }

    /// What is kept of the sum of a step of so many micro-batches, all of whose rounds are over.
    pub fn end(&mut self, micro_batches: u32) {
        self.folding.finish(micro_batches);
    }

    /// The sum of the step.
    pub fn take(&mut self) -> Flat {
        self.folding.take()
    }

    /// Takes part in a round in which this rank has no micro-batch.
    ///
    /// *Blocks* for all ranks. *Errors*: the collectives broke off.
    pub fn take_part(&mut self, round: Round, on: &mut Wires<'_>) -> Result<(), Broke> {
        (0..self.cuts.len()).try_for_each(|window| self.exchange(window, round, on))
    }

    /// Gives those who hold a window what this rank has computed of it, and adds up what it holds itself.
    fn exchange(&mut self, window: usize, round: Round, on: &mut Wires<'_>) -> Result<(), Broke> {
        let Self { rank, world, cuts, memory, folding, starts, .. } = self;
        let first = round.number * *world as u32;
        let active = (round.micro_batches - first).min(*world as u32) as usize;
        let WindowCut { elements, place, pieces } = &cuts[window];
        for piece in pieces {
            let len = piece.elements.len();
            starts.clear();
            starts.extend((0..=*world).map(|of| of.min(active) * len));
            if *rank < active {
                let at = place.start + piece.elements.start - elements.start;
                let slot = &mut on.backend.arena().lease(0)[*rank * len..(*rank + 1) * len];
                slot.copy_from_slice(&memory[at..at + len]);
            }
            on.backend.narrow(&piece.narrow);
            let gather = Op::AllGather { cuts: Some(starts), take: Take::Needed };
            on.waited += move_floats(on.backend, on.sequence, &gather)?;
            let slot = on.backend.arena().lease(0);
            for (of, m) in (first..).take(active).enumerate() {
                let given = &slot[of * len..(of + 1) * len];
                for (to, from) in &piece.keeps {
                    folding.add(m, to.clone(), &given[*from..*from + to.len()]);
                }
            }
        }
        Ok(())
    }

    /// Computes a micro-batch again, alone, and tells whether its loss or gradient is not finite.
    ///
    /// *Errors*: as [`Replica::compute`].
    pub fn is_at_fault(
        &mut self,
        replica: &mut dyn Replica,
        step: Step,
        at: MicroBatch,
        batch: &BatchView<'_>,
    ) -> Result<bool, EngineError> {
        let mut figures = [BatchFigures::default()];
        let mut to = Looked { rounds: self, window: 0, is_finite: true };
        replica.compute(&MicroBatchGroup::of_one(step, at), batch, &mut to, &mut figures)?;
        Ok(!(to.is_finite && figures[0].sums.loss.is_finite()))
    }

    /// Where a part of a gradient is written whose windows before this one are final.
    fn part(&mut self, window: usize, part: Range<usize>) -> &mut [f32] {
        if part.is_empty() {
            return &mut [];
        }
        let inside = |cut: &&WindowCut| cut.elements.start <= part.start && part.end <= cut.elements.end;
        let cut = self.cuts[window..].iter().find(inside).expect("a part of a gradient lies in a window");
        let at = cut.place.start + part.start - cut.elements.start;
        &mut self.memory[at..at + part.len()]
    }

    /// The trailer of a step of so many micro-batches, of which this rank has these; the same on all.
    ///
    /// *Blocks* for all ranks. *Errors*: the collectives broke off.
    pub fn sum_trailers(
        &mut self,
        own: &[Trailer],
        micro_batches: u32,
        on: &mut Wires<'_>,
    ) -> Result<Trailer, Broke> {
        let (world, starts) = (self.world, &mut self.starts);
        let of = |rank: usize| (micro_batches as usize).saturating_sub(rank).div_ceil(world);
        starts.clear();
        starts.push(0);
        (0..world).for_each(|rank| starts.push(starts[rank] + TRAILER * of(rank)));
        let slot = &mut on.backend.arena().lease(0)[starts[self.rank]..starts[self.rank + 1]];
        for (words, trailer) in slot.chunks_exact_mut(TRAILER).zip(own) {
            words.copy_from_slice(&to_words(trailer));
        }
        let gather = Op::AllGather { cuts: Some(starts), take: Take::All };
        on.waited += move_floats(on.backend, on.sequence, &gather)?;
        let slot = on.backend.arena().lease(0);
        let mut pending = [Trailer::EMPTY; 33];
        let mut merger = Merger::default();
        for m in 0..micro_batches as usize {
            let at = starts[m % world] + TRAILER * (m / world);
            pending[merger.next_buffer()] = from_words(&slot[at..at + TRAILER]);
            merger.push(|l, r| pending[l] = pending[l].merge(&pending[r]));
        }
        merger.finish(|l, r| pending[l] = pending[l].merge(&pending[r]));
        Ok(pending[0])
    }
}

impl Piece {
    fn new(elements: Range<usize>, needs: &[Held], rank: usize) -> Self {
        let len = elements.len();
        let window = Held::of(vec![elements.clone()]);
        let of_rank = |held: &Held| {
            let runs = held.meets(&window);
            let shifted = |of: usize| {
                let by = of * len;
                runs.iter().map(move |run| by + run.start - elements.start..by + run.end - elements.start)
            };
            [(0..needs.len()).flat_map(shifted).collect(), Vec::new()]
        };
        let narrow = Narrow::new(needs.iter().map(of_rank));
        let place = |run: Range<usize>| (needs[rank].place(&run), run.start - elements.start);
        let keeps = needs[rank].meets(&window).into_iter().map(place).collect();
        Self { narrow, keeps, elements }
    }
}

/// The same elements in runs that rise.
fn merged(mut runs: Vec<Range<usize>>) -> Vec<Range<usize>> {
    runs.retain(|run| !run.is_empty());
    runs.sort_by_key(|run| run.start);
    let mut all: Vec<Range<usize>> = Vec::with_capacity(runs.len());
    for run in runs {
        match all.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => all.push(run),
        }
    }
    all
}

/// Which round of a step.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// From 0.
    pub number: u32,
    /// Of the step.
    pub micro_batches: u32,
}

/// What ranks exchange floats by.
pub struct Wires<'a> {
    /// Has the slots.
    pub backend: &'a mut dyn Backend,
    /// The newest collective.
    pub sequence: &'a mut Sequence,
    /// How long others were waited for.
    pub waited: Duration,
}

/// Where a micro-batch of a round writes its gradient, window by window.
pub struct WindowedGradient<'a, 'b> {
    rounds: &'a mut Rounds,
    round: Round,
    on: &'a mut Wires<'b>,
    /// The window that is written.
    window: usize,
    /// How the exchanges went: a pass cannot be told, and goes on to its end.
    went: Result<(), Broke>,
}

impl<'a, 'b> WindowedGradient<'a, 'b> {
    /// One of which nothing is written.
    pub fn new(rounds: &'a mut Rounds, round: Round, on: &'a mut Wires<'b>) -> Self {
        Self { rounds, round, on, window: 0, went: Ok(()) }
    }

    /// The pass is over. *Errors*: the collectives broke off.
    pub fn finish(self) -> Result<(), Broke> {
        self.went
    }
}

impl Gradient for WindowedGradient<'_, '_> {
    fn elements(&self) -> usize {
        self.rounds.cuts.first().map_or(0, |last| last.elements.end)
    }

    fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        self.rounds.part(self.window, part)
    }

    fn settle(&mut self, from: usize) {
        while self.rounds.cuts.get(self.window).is_some_and(|cut| from <= cut.elements.start) {
            if self.went.is_ok() {
                self.went = self.rounds.exchange(self.window, self.round, self.on);
            }
            self.window += 1;
        }
    }
}

/// Windows of which nothing is kept but whether all is finite.
struct Looked<'a> {
    rounds: &'a mut Rounds,
    window: usize,
    is_finite: bool,
}

impl Gradient for Looked<'_> {
    fn elements(&self) -> usize {
        self.rounds.cuts.first().map_or(0, |last| last.elements.end)
    }

    fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        self.rounds.part(self.window, part)
    }

    fn settle(&mut self, from: usize) {
        while let Some(cut) = self.rounds.cuts.get(self.window).filter(|cut| from <= cut.elements.start) {
            self.is_finite &= self.rounds.memory[cut.place.clone()].iter().all(|x| x.is_finite());
            self.window += 1;
        }
    }
}

/// Bits as floats, which are moved and never looked at.
fn to_words(trailer: &Trailer) -> [f32; TRAILER] {
    let Trailer { loss, weight, samples, predictions, correct, check, stop, non_finite } = *trailer;
    let long = [loss.to_bits(), weight.to_bits(), samples, predictions, correct, check];
    let mut words = [0.0; TRAILER];
    for (pair, bits) in words.chunks_exact_mut(2).zip(long) {
        pair.copy_from_slice(&[f32::from_bits(bits as u32), f32::from_bits((bits >> 32) as u32)]);
    }
    words[12..].copy_from_slice(&[f32::from_bits(stop), f32::from_bits(non_finite)]);
    words
}

fn from_words(words: &[f32]) -> Trailer {
    let long = |at: usize| u64::from(words[2 * at].to_bits()) | u64::from(words[2 * at + 1].to_bits()) << 32;
    Trailer {
        loss: f64::from_bits(long(0)),
        weight: f64::from_bits(long(1)),
        samples: long(2),
        predictions: long(3),
        correct: long(4),
        check: long(5),
        stop: words[12].to_bits(),
        non_finite: words[13].to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trailer_comes_out_of_its_words_as_it_went_in() {
        let trailer = Trailer {
            loss: -0.0,
            weight: f64::NAN,
            samples: u64::MAX,
            predictions: 1 << 40 | 3,
            correct: 0,
            check: 0x7FA0_0001_FFFF_FFFF,
            stop: 2,
            non_finite: Trailer::ALL_FINITE,
        };
        let back = from_words(&to_words(&trailer));
        assert_eq!(
            (back.loss.to_bits(), back.weight.to_bits()),
            (trailer.loss.to_bits(), trailer.weight.to_bits())
        );
        let same = Trailer { loss: 0.0, weight: 0.0, ..back };
        assert_eq!(same, Trailer { loss: 0.0, weight: 0.0, ..trailer });
    }
}
