//! Windows of gradients on their way to those who hold their shards, who add them up: no rank has all of one.
//!
//! All ranks exchange the same windows in the same order. This file does not know what is computed, nor when, nor what comes of the sum.

use crate::exchange::{Exchange, there};
use crate::folding::{Folding, Fresh};
use crate::memory::Memory;
use dtrain_collective::{CollectiveError, Narrow, Op, Take};
use dtrain_engine::{Held, UpdateShare, Windows, needed};
use dtrain_types::{Holders, Rank, ShardLevel, Wire};
use std::ops::Range;

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
    /// What ranks share out: passes are brought parameters where those are.
    pub level: ShardLevel,
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
    cuts: Vec<WindowCut>,
}

/// A window, and what is exchanged of it, one piece after the other.
#[derive(Clone, Debug)]
struct WindowCut {
    elements: Range<usize>,
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
        let RoundsPlan { holders, rank: (rank, world), windows, lengths, slot, .. } = *plan;
        let (parameters, gradient) = lengths;
        let needs = |index: usize| {
            let share = UpdateShare { index, of: world };
            needed(&holders.holding(Rank(index as u32)), share, parameters, gradient)
        };
        let needs: Vec<Held> = (0..world).map(|index| Held::of(needs(index))).collect();
        let kept = needs[rank.index()].clone();
        let most = (slot / world).max(1);
        let cut = |elements: &Range<usize>| {
            let starts = elements.clone().step_by(most);
            let end = |start: usize| elements.end.min(start + most);
            let piece = |start: usize| Piece::new(start..end(start), &needs, rank.index());
            WindowCut { pieces: starts.map(piece).collect(), elements: elements.clone() }
        };
        let cuts = windows.all().iter().map(|window| cut(&window.elements)).collect();
        Self { rank: rank.index(), world, cuts, kept }
    }

    /// What this rank keeps of a sum.
    #[must_use]
    pub fn kept(&self) -> &Held {
        &self.kept
    }

    /// Gives those who hold a window what this rank has computed of it, which is this, and adds up what it holds itself: where it lies. *Blocks* for
    /// all ranks. *Errors*: an exchange broke off.
    pub fn exchange(
        &self,
        (window, computed): (usize, &Memory),
        round: Round,
        (folding, starts): (&mut Folding, &mut Vec<usize>),
        by: &mut dyn Exchange,
    ) -> Result<(), CollectiveError> {
        let Self { rank, world, cuts, .. } = self;
        let first = round.number * *world as u32;
        let active = (round.micro_batches - first).min(*world as u32) as usize;
        let WindowCut { elements, pieces } = &cuts[window];
        for piece in pieces {
            let len = piece.elements.len();
            starts.clear();
            starts.extend((0..=*world).map(|of| of.min(active) * len));
            if *rank < active {
                let at = piece.elements.start - elements.start;
                match computed {
                    Memory::Home(computed) => {
                        let slot = &mut by.slot()[*rank * len..(*rank + 1) * len];
                        slot.copy_from_slice(&computed[at..at + len]);
                    }
                    Memory::There(computed) => there(by).put(computed, at..at + len, *rank * len)?,
                }
            }
            by.narrow(&piece.narrow);
            by.gather(&Op::AllGather { cuts: Some(starts), take: Take::Needed })?;
            let is_last = first + active as u32 == round.micro_batches;
            let fresh = Fresh { first, count: active, len, is_last };
            match computed {
                Memory::Home(_) => {
                    let slot = by.slot();
                    piece.keeps.iter().for_each(|(to, from)| folding.add(fresh, to.clone(), *from, slot));
                }
                Memory::There(_) => {
                    let slot = there(by);
                    let mut keeps = piece.keeps.iter();
                    keeps.try_for_each(|(to, from)| folding.add_there(fresh, to.clone(), *from, slot))?;
                }
            }
        }
        if let Memory::There(_) = computed {
            // Its memory is free again.
            there(by).hand_over()?;
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
