//! Parameters for one pass after the other: the window that a stage needs is there or on its way, the next one is asked for before anything is computed
//! with it, and the one before is dropped.
//!
//! All ranks ask alike: a pass that reads what it said beforehand is all that takes. This file does not know how windows travel.

use crate::carries::{Carries, Parcel};
use crate::memory::{Memory, Site};
use crate::window_parameters::ParameterWindows;
use dtrain_collective::CollectiveError;
use dtrain_engine::{BringsParameters, OwnParameters, OwnThere, Section};
use dtrain_types::{DeviceMemory, ShardLevel};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Memory for two windows: one that is computed with, and one that is coming.
#[derive(Clone, Debug)]
pub struct ParameterStock {
    there: Option<Parcel>,
    /// The next one, if it need not travel.
    here: Option<Parcel>,
    free: Vec<Memory>,
    /// Whether all of it is memory of a device.
    is_there: bool,
}

impl ParameterStock {
    /// For these windows, on this site, where they are brought at all. *Errors*: it has no room.
    pub fn at(
        site: &mut Site<'_>,
        windows: &ParameterWindows,
        level: ShardLevel,
    ) -> Result<Self, CollectiveError> {
        let are_brought = level == ShardLevel::Parameters;
        let longest = if are_brought { windows.longest() } else { 0 };
        let free = (0..Self::WINDOWS).map(|_| site.take(longest)).collect::<Result<_, _>>()?;
        Ok(Self { there: None, here: None, free, is_there: matches!(site, Site::There(_)) })
    }

    /// How many windows there is memory for.
    pub const WINDOWS: usize = 2;

    /// Forgets what is there: it will have changed.
    pub fn forget(&mut self) {
        let all = [self.there.take(), self.here.take()];
        self.free.extend(all.into_iter().flatten().map(|parcel| parcel.memory));
    }

    /// Takes back the memory of a window for which nobody waits any more.
    pub fn give_up(&mut self, parcel: Parcel) {
        self.free.push(parcel.memory);
    }
}

/// What a pass is brought, or takes part in bringing to others.
pub struct BroughtParameters<'a, 'b> {
    windows: &'a ParameterWindows,
    stock: &'a mut ParameterStock,
    carrier: &'a Mutex<&'b mut dyn Carries>,
    /// The windows that are still to be asked for, in the order of the pass.
    ahead: &'a [usize],
    /// Whether the one before them was asked for and is not there.
    is_coming: bool,
}

impl<'a, 'b> BroughtParameters<'a, 'b> {
    /// For a pass that reads these windows in this order. What is there of the pass before stays.
    pub fn new(
        (windows, ahead): (&'a ParameterWindows, &'a [usize]),
        stock: &'a mut ParameterStock,
        carrier: &'a Mutex<&'b mut dyn Carries>,
    ) -> Self {
        let is_there = stock.there.as_ref().is_some_and(|parcel| ahead.first() == Some(&parcel.window));
        let ahead = &ahead[usize::from(is_there)..];
        Self { windows, stock, carrier, ahead, is_coming: false }
    }

    /// Has the next window brought if it travels, unless one is on its way or there is none; what this rank has of it is laid there first.
    fn ask(&mut self, lay: &mut dyn FnMut(usize, &mut Memory)) {
        let Some((window, ahead)) = self.ahead.split_first().filter(|_| !self.is_coming) else { return };
        let mut memory = self.stock.free.pop().expect("one of two windows is there at most");
        lay(*window, &mut memory);
        let parcel = Parcel { window: *window, memory };
        match self.windows.travels(*window) {
            true => self.carrier.lock().unwrap_or_else(PoisonError::into_inner).bring(parcel),
            false => self.stock.here = Some(parcel),
        }
        (self.ahead, self.is_coming) = (ahead, true);
    }

    /// Memory in which these elements are, and where.
    fn come(
        &mut self,
        elements: &Range<usize>,
        lay: &mut dyn FnMut(usize, &mut Memory),
    ) -> (&Memory, Range<usize>) {
        let windows = self.windows;
        let place = |parcel: &Parcel| windows.place_in(parcel.window, elements);
        if self.stock.there.as_ref().and_then(place).is_none() {
            self.ask(lay);
            assert!(self.is_coming, "the pass reads {elements:?} and did not say so");
            let here = self.stock.here.take();
            let carrier = || self.carrier.lock().unwrap_or_else(PoisonError::into_inner);
            let parcel = here.unwrap_or_else(|| carrier().brought());
            self.stock.forget();
            (self.stock.there, self.is_coming) = (Some(parcel), false);
        }
        // While the pass computes with this one the next one travels.
        self.ask(lay);
        let parcel = self.stock.there.as_ref().expect("it has come");
        let place = place(parcel).expect("a pass reads windows in the order that it told");
        (&parcel.memory, place)
    }
}

impl BringsParameters for BroughtParameters<'_, '_> {
    fn bring(&mut self, _section: Section, elements: Range<usize>, own: &mut OwnParameters<'_>) -> &[f32] {
        let windows = self.windows;
        let lay = &mut |window, memory: &mut Memory| windows.lay(window, memory.home_mut(), own);
        let (memory, place) = self.come(&elements, lay);
        &memory.home()[place]
    }

    fn bring_there(
        &mut self,
        _section: Section,
        elements: Range<usize>,
        own: &mut OwnThere<'_>,
    ) -> Option<(DeviceMemory, Range<usize>)> {
        if !self.stock.is_there {
            return None;
        }
        let windows = self.windows;
        let lay = &mut |window, memory: &mut Memory| {
            let memory = memory.there().expect("all of it is there");
            windows.lay_there(window, memory, own);
        };
        let (memory, place) = self.come(&elements, lay);
        Some((memory.there().expect("all of it is there").clone(), place))
    }
}
