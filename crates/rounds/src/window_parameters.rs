//! Windows of parameters of which each rank has its shards alone: which there are, in which order passes read them, and how one is brought.
//!
//! All ranks bring the same windows in the same order. This file does not know what is computed with them, nor when they are asked for.

use crate::exchange::{Exchange, there};
use crate::memory::Memory;
use crate::owned::{GatherPiece, Owned};
use dtrain_collective::{CollectiveError, Op, Take};
use dtrain_engine::{Call, OwnParameters, OwnThere, Windows};
use dtrain_types::DeviceMemory;
use std::ops::Range;

/// The windows of the parameters of a generation.
#[derive(Clone, Debug)]
pub struct ParameterWindows {
    all: Vec<ParameterWindow>,
    forward: Vec<usize>,
    training: Vec<usize>,
}

/// One of them: its elements, and how they are gathered from their owners, one piece after the other.
#[derive(Clone, Debug)]
struct ParameterWindow {
    elements: Range<usize>,
    pieces: Vec<GatherPiece>,
}

impl ParameterWindow {
    /// Where a run of it lies in its memory.
    fn place(&self, run: &Range<usize>) -> Range<usize> {
        run.start - self.elements.start..run.end - self.elements.start
    }
}

impl ParameterWindows {
    /// Those of these windows of a gradient that are of parameters, of which ranks own so much, through a slot of so many floats.
    #[must_use]
    pub fn new(windows: &Windows, owned: &Owned<'_>, slot: usize) -> Self {
        let of_parameters = |elements: &Range<usize>| elements.end <= owned.parameters();
        let cut = |elements: Range<usize>| {
            let starts = elements.clone().step_by(slot.max(1));
            let piece = |start: usize| owned.gather(start..elements.end.min(start + slot));
            ParameterWindow { pieces: starts.map(piece).collect(), elements }
        };
        let elements = windows.all().iter().map(|window| window.elements.clone());
        let all: Vec<_> = elements.filter(of_parameters).map(cut).collect();
        let window_of = |read: &Range<usize>| {
            let has = |it: &ParameterWindow| it.elements.start <= read.start && read.end <= it.elements.end;
            all.iter().position(has).expect("the parameters of a stage lie in a window")
        };
        let itinerary = windows.itinerary();
        let read = |call: &Call| if let Call::Reads(read) = call { Some(window_of(read)) } else { None };
        let mut forward: Vec<usize> = itinerary.forward.iter().map(window_of).collect();
        let mut training: Vec<usize> =
            forward.iter().copied().chain(itinerary.backward.iter().filter_map(read)).collect();
        forward.dedup();
        training.dedup();
        Self { all, forward, training }
    }

    /// The windows that a forward pass reads, in its order.
    pub fn of_a_forward_pass(&self) -> &[usize] {
        &self.forward
    }

    /// The windows that a training pass reads, in its order.
    pub fn of_a_training_pass(&self) -> &[usize] {
        &self.training
    }

    /// Elements of the longest.
    pub fn longest(&self) -> usize {
        self.all.iter().map(|window| window.elements.len()).max().unwrap_or(0)
    }

    /// Where elements lie in memory for this window, if they are of it.
    pub fn place_in(&self, window: usize, elements: &Range<usize>) -> Option<Range<usize>> {
        let window = &self.all[window];
        let is_inside = window.elements.start <= elements.start && elements.end <= window.elements.end;
        is_inside.then(|| window.place(elements))
    }

    /// Whether a window travels: some rank lacks a part of it. All ranks say the same.
    pub fn travels(&self, window: usize) -> bool {
        self.all[window].pieces.iter().any(|piece| piece.is_lacked)
    }

    /// Lays what this rank holds of a window into memory for it.
    pub fn lay(&self, window: usize, memory: &mut [f32], own: &mut OwnParameters<'_>) {
        let window = &self.all[window];
        let held = window.pieces.iter().flat_map(|piece| &piece.held);
        held.for_each(|run| own(run.clone(), &mut memory[window.place(run)]));
    }

    /// The same in memory of a device.
    pub fn lay_there(&self, window: usize, memory: &DeviceMemory, own: &mut OwnThere<'_>) {
        let window = &self.all[window];
        let held = window.pieces.iter().flat_map(|piece| &piece.held);
        held.for_each(|run| own(run.clone(), memory, window.place(run).start));
    }

    /// Brings the rest of a window into memory in which lies what this rank holds of it, and gives others that. *Blocks* for all ranks. *Errors*:
    /// an exchange broke off.
    pub fn bring(
        &self,
        window: usize,
        memory: &mut Memory,
        by: &mut dyn Exchange,
    ) -> Result<(), CollectiveError> {
        let window = &self.all[window];
        for piece in window.pieces.iter().filter(|piece| piece.is_lacked) {
            let GatherPiece { from, held, lacks, cuts, narrow, .. } = piece;
            let in_slot = |run: &Range<usize>| run.start - from..run.end - from;
            match memory {
                Memory::Home(memory) => {
                    let slot = by.slot();
                    held.iter()
                        .for_each(|run| slot[in_slot(run)].copy_from_slice(&memory[window.place(run)]));
                }
                Memory::There(memory) => {
                    let slot = there(by);
                    held.iter()
                        .try_for_each(|run| slot.put(memory, window.place(run), in_slot(run).start))?;
                }
            }
            by.narrow(narrow);
            by.gather(&Op::AllGather { cuts: Some(cuts), take: Take::Rest })?;
            match memory {
                Memory::Home(memory) => {
                    let slot = by.slot();
                    lacks
                        .iter()
                        .for_each(|run| memory[window.place(run)].copy_from_slice(&slot[in_slot(run)]));
                }
                Memory::There(memory) => {
                    let slot = there(by);
                    lacks
                        .iter()
                        .try_for_each(|run| slot.take(in_slot(run), memory, window.place(run).start))?;
                }
            }
        }
        if let Memory::There(_) = memory {
            there(by).hand_over()?;
        }
        Ok(())
    }
}
