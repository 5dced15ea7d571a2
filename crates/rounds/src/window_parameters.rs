//! Parameters of which each rank has its shards alone, brought window by window to the passes that need them, and dropped behind.
//!
//! All ranks bring the same windows in the same order. This file does not know what is computed with them.

use crate::exchange::Wires;
use crate::owned::{GatherPiece, Owned};
use dtrain_collective::{CollectiveError, Op, Take};
use dtrain_engine::{BringsParameters, Flat, OwnParameters, Section, Windows};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The windows of the parameters of a generation, and memory for one of them.
#[derive(Clone, Debug)]
pub struct ParameterWindows {
    windows: Vec<(Range<usize>, Vec<GatherPiece>)>,
    memory: Flat,
}

impl ParameterWindows {
    /// Those of these windows of a gradient that are of parameters, of which ranks own so much, through a slot of so many floats.
    #[must_use]
    pub fn new(windows: &Windows, owned: &Owned<'_>, slot: usize) -> Self {
        let of_parameters = |elements: &Range<usize>| elements.end <= owned.parameters();
        let pieces = |elements: Range<usize>| {
            let starts = elements.clone().step_by(slot.max(1));
            let piece = |start: usize| owned.gather(start..elements.end.min(start + slot));
            (elements.clone(), starts.map(piece).collect())
        };
        let all = windows.all().iter().map(|window| window.elements.clone()).filter(of_parameters);
        let windows: Vec<_> = all.map(pieces).collect();
        let longest = windows.iter().map(|(elements, _)| elements.len()).max().unwrap_or(0);
        Self { windows, memory: Flat::zeros(longest) }
    }

    /// The window in which elements lie.
    fn window_of(&self, elements: &Range<usize>) -> usize {
        let inside =
            |(window, _): &(Range<usize>, _)| window.start <= elements.start && elements.end <= window.end;
        self.windows.iter().position(inside).expect("the parameters of a stage lie in a window")
    }

    fn bring(
        &mut self,
        window: usize,
        own: &mut OwnParameters<'_>,
        on: &mut Wires<'_>,
    ) -> Result<(), CollectiveError> {
        let Self { windows, memory } = self;
        let (elements, pieces) = &windows[window];
        for GatherPiece { from, held, lacks, cuts, narrow, is_lacked } in pieces {
            if !is_lacked {
                let to = |run: &Range<usize>| run.start - elements.start..run.end - elements.start;
                held.iter().for_each(|run| own(run.clone(), &mut memory[to(run)]));
                continue;
            }
            let slot = on.slot();
            held.iter().for_each(|run| own(run.clone(), &mut slot[run.start - from..run.end - from]));
            on.narrow(narrow);
            on.gather(&Op::AllGather { cuts: Some(cuts), take: Take::Rest })?;
            let slot = on.slot();
            for run in held.iter().chain(lacks) {
                let to = run.start - elements.start..run.end - elements.start;
                memory[to].copy_from_slice(&slot[run.start - from..run.end - from]);
            }
        }
        Ok(())
    }
}

/// What a pass is brought, or takes part in bringing to others.
pub struct BroughtParameters<'a, 'b> {
    windows: &'a mut ParameterWindows,
    on: &'a Mutex<Wires<'b>>,
    /// The window that is there.
    there: Option<usize>,
    went: Result<(), CollectiveError>,
}

impl<'a, 'b> BroughtParameters<'a, 'b> {
    /// For one pass: nothing is there yet.
    pub fn new(windows: &'a mut ParameterWindows, on: &'a Mutex<Wires<'b>>) -> Self {
        Self { windows, on, there: None, went: Ok(()) }
    }

    /// The pass is over. *Errors*: the collectives broke off.
    pub fn finish(self) -> Result<(), CollectiveError> {
        self.went
    }
}

impl BringsParameters for BroughtParameters<'_, '_> {
    fn bring(&mut self, _section: Section, elements: Range<usize>, own: &mut OwnParameters<'_>) -> &[f32] {
        let window = self.windows.window_of(&elements);
        let on = &mut *self.on.lock().unwrap_or_else(PoisonError::into_inner);
        if self.there != Some(window) && !on.are_cut() {
            self.went = self.windows.bring(window, own, on);
            self.there = Some(window);
        }
        let start = self.windows.windows[window].0.start;
        &self.windows.memory[elements.start - start..elements.end - start]
    }
}
