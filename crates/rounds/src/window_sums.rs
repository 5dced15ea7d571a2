//! Windows of gradients on their way to those who hold their shards, who add them up: no rank has all of one.
//!
//! All ranks exchange the same windows in the same order. This file does not know what is computed, nor what comes of the sum.

use crate::exchange::Wires;
use crate::folding::{Folding, Fresh};
use dtrain_collective::{CollectiveError, Narrow, Op, Take};
use dtrain_engine::{Flat, Gradient, Held, UpdateShare, Window, Windows, needed};
use dtrain_types::{Holders, Rank, Wire};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// What rounds follow from.
pub struct RoundsPlan<'a> {
    /// Who holds what.
    pub holders: &'a Holders,
    /// Where what each owns of the parameters begins, and where the last one's ends.
    pub cuts: &'a [usize],
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

/// Which round of a step.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// From 0.
    pub number: u32,
    /// Of the step.
    pub micro_batches: u32,
}

/// The windows of the gradients of a generation, and what this rank keeps of a sum.
#[derive(Clone, Debug)]
pub struct WindowSums {
    rank: usize,
    world: usize,
    /// What this rank needs of a sum.
    kept: Held,
    windows: Windows,
    cuts: Vec<WindowCut>,
    /// Where a micro-batch writes its windows.
    memory: Flat,
    folding: Folding,
    /// Where the parts of the ranks begin in a slot, and the last one ends.
    starts: Vec<usize>,
}

/// A window, and what is exchanged of it, one piece after the other.
#[derive(Clone, Debug)]
struct WindowCut {
    window: Window,
    pieces: Vec<Piece>,
}

/// As much of a window as a slot has room for beside those of all other ranks.
#[derive(Clone, Debug)]
struct Piece {
    elements: Range<usize>,
    /// Who needs which elements of the ranks' pieces, one behind the other in a slot.
    narrow: Narrow,
    /// What this rank keeps of it: where that lies in a sum, and the first of it in the piece.
    keeps: Vec<(Range<usize>, usize)>,
}

impl WindowSums {
    /// Those of a generation.
    #[must_use]
    pub fn new(plan: &RoundsPlan<'_>) -> Self {
        let RoundsPlan { holders, rank: (rank, world), windows, lengths, slot, micro_batches, wire, .. } =
            *plan;
        let (parameters, gradient) = lengths;
        let needs = |index: usize| {
            let share = UpdateShare { index, of: world };
            needed(&holders.holding(Rank(index as u32)), share, parameters, gradient)
        };
        let needs: Vec<Held> = (0..world).map(|index| Held::of(needs(index))).collect();
        let kept = needs[rank.index()].clone();
        let most = (slot / world).max(1);
        let cut = |window: &Window| {
            let starts = window.elements.clone().step_by(most);
            let end = |start: usize| window.elements.end.min(start + most);
            let piece = |start: usize| Piece::new(start..end(start), &needs, rank.index());
            WindowCut { pieces: starts.map(piece).collect(), window: window.clone() }
        };
        Self {
            rank: rank.index(),
            world,
            cuts: windows.all().iter().map(cut).collect(),
            memory: Flat::zeros(windows.memory()),
            windows: windows.clone(),
            folding: Folding::new(kept.elements(), (micro_batches, world as u32), wire),
            starts: Vec::with_capacity(world + 1),
            kept,
        }
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

    /// The sum of the step.
    pub fn take(&mut self) -> Flat {
        self.folding.take()
    }

    /// Gives those who hold a window what this rank has computed of it, and adds up what it holds itself.
    fn exchange(&mut self, window: usize, round: Round, on: &mut Wires<'_>) -> Result<(), CollectiveError> {
        let Self { rank, world, cuts, memory, folding, starts, .. } = self;
        let first = round.number * *world as u32;
        let active = (round.micro_batches - first).min(*world as u32) as usize;
        let WindowCut { window: Window { elements, place, .. }, pieces } = &cuts[window];
        for piece in pieces {
            let len = piece.elements.len();
            starts.clear();
            starts.extend((0..=*world).map(|of| of.min(active) * len));
            if *rank < active {
                let at = place.start + piece.elements.start - elements.start;
                let slot = &mut on.slot()[*rank * len..(*rank + 1) * len];
                slot.copy_from_slice(&memory[at..at + len]);
            }
            on.narrow(&piece.narrow);
            on.gather(&Op::AllGather { cuts: Some(starts), take: Take::Needed })?;
            let slot = on.slot();
            let is_last = first + active as u32 == round.micro_batches;
            let fresh = Fresh { first, count: active, len, is_last };
            for (to, from) in &piece.keeps {
                folding.add(fresh, to.clone(), *from, slot);
            }
        }
        Ok(())
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

/// The gradient of a micro-batch, window by window; of a rank that has none, what it takes part in.
pub struct WindowedGradient<'a, 'b> {
    sums: &'a mut WindowSums,
    then: Then<'a, 'b>,
    /// The window that is written.
    window: usize,
    /// Whether all that was looked at was finite.
    is_finite: bool,
    /// How the exchanges went: a pass cannot be told, and goes on to its end.
    went: Result<(), CollectiveError>,
}

/// What becomes of a window that is final.
pub enum Then<'a, 'b> {
    /// It goes to those who hold it, in this round.
    Exchanged(Round, &'a Mutex<Wires<'b>>),
    /// It is looked at, whether all of it is finite, and forgotten.
    LookedAt,
}

impl<'a, 'b> WindowedGradient<'a, 'b> {
    /// One of which nothing is written.
    pub fn new(sums: &'a mut WindowSums, then: Then<'a, 'b>) -> Self {
        Self { sums, then, window: 0, is_finite: true, went: Ok(()) }
    }

    /// The pass is over: whether all that was looked at was finite. *Errors*: the collectives broke off.
    pub fn finish(self) -> Result<bool, CollectiveError> {
        self.went.map(|()| self.is_finite)
    }
}

impl Gradient for WindowedGradient<'_, '_> {
    fn elements(&self) -> usize {
        self.sums.cuts.first().map_or(0, |last| last.window.elements.end)
    }

    fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        let WindowSums { windows, memory, .. } = &mut *self.sums;
        &mut memory[windows.place_of(self.window, &part)]
    }

    fn settle(&mut self, from: usize) {
        while let Some(WindowCut { window, .. }) =
            self.sums.cuts.get(self.window).filter(|cut| from <= cut.window.elements.start)
        {
            match &self.then {
                Then::Exchanged(round, on) => {
                    let on = &mut *on.lock().unwrap_or_else(PoisonError::into_inner);
                    if !on.are_cut() {
                        self.went = self.sums.exchange(self.window, *round, on);
                    }
                }
                Then::LookedAt => {
                    self.is_finite &= self.sums.memory[window.place.clone()].iter().all(|x| x.is_finite());
                }
            }
            self.window += 1;
        }
    }
}
