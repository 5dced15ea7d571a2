//! The seam for carriers: windows that are on their way while a pass computes. It does not know who carries them, nor when.

use crate::exchange::Exchange;
use crate::folding::Folding;
use crate::memory::Memory;
use crate::window_parameters::ParameterWindows;
use crate::window_sums::{Round, WindowSums};
use dtrain_collective::CollectiveError;
use std::collections::VecDeque;
use std::sync::Arc;

/// A window, and memory for it.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// Which.
    pub window: usize,
    /// What it is.
    pub memory: Memory,
}

/// What a parcel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParcelKind {
    /// Parameters.
    Parameters,
    /// A part of a gradient.
    Gradient,
}

/// Who carries windows between ranks: one after the other, in the order in which it is told to. Once an exchange broke off nothing is carried any
/// more, and parcels come back as they are.
pub trait Carries: Send {
    /// Has a window of parameters brought, into memory in which lies what this rank holds of it.
    fn bring(&mut self, parcel: Parcel);

    /// The oldest window that was to be brought. *Blocks* until it is there.
    fn brought(&mut self) -> Parcel;

    /// Gives a window of a gradient to those who hold it.
    fn exchange(&mut self, parcel: Parcel, round: Round);

    /// The oldest window that was given to others, whose memory is free again. *Blocks* until it is.
    fn exchanged(&mut self) -> Parcel;
}

/// What a carrier takes along: how windows travel, and the sums of gradients to which those are added that come.
#[derive(Clone, Debug)]
pub struct Carriage {
    parameters: Arc<ParameterWindows>,
    sums: Arc<WindowSums>,
    /// The sums.
    pub(crate) folding: Folding,
    /// Where the parts of the ranks begin in a slot, and the last one ends.
    starts: Vec<usize>,
    went: Result<(), CollectiveError>,
}

impl Carriage {
    pub(crate) fn new(
        parameters: Arc<ParameterWindows>,
        sums: Arc<WindowSums>,
        folding: Folding,
        world: usize,
    ) -> Self {
        Self { parameters, sums, folding, starts: Vec::with_capacity(world + 1), went: Ok(()) }
    }

    /// How it went since it was asked last. Once an exchange broke off nothing is carried any more.
    pub(crate) fn take_result(&mut self) -> Result<(), CollectiveError> {
        std::mem::replace(&mut self.went, Ok(()))
    }

    /// Whether an exchange broke off.
    #[must_use]
    pub fn broke_off(&self) -> bool {
        self.went.is_err()
    }

    /// [`Carries::bring`], from its start to its end. *Blocks* for all ranks.
    pub fn bring(&mut self, parcel: &mut Parcel, by: &mut dyn Exchange) {
        if self.went.is_ok() {
            self.went = self.parameters.bring(parcel.window, &mut parcel.memory, by);
        }
    }

    /// [`Carries::exchange`], from its start to its end. *Blocks* for all ranks.
    pub fn exchange(&mut self, parcel: &Parcel, round: Round, by: &mut dyn Exchange) {
        if self.went.is_ok() {
            let to = (&mut self.folding, &mut self.starts);
            self.went = self.sums.exchange((parcel.window, &parcel.memory), round, to, by);
        }
    }
}

/// Carries each window at once: while it does, the pass waits.
pub(crate) struct AtOnce<'a> {
    pub carriage: Carriage,
    pub by: &'a mut dyn Exchange,
    pub brought: VecDeque<Parcel>,
    pub exchanged: VecDeque<Parcel>,
}

impl Carries for AtOnce<'_> {
    fn bring(&mut self, mut parcel: Parcel) {
        self.carriage.bring(&mut parcel, self.by);
        self.brought.push_back(parcel);
    }

    fn brought(&mut self) -> Parcel {
        self.brought.pop_front().expect("what is waited for was asked for")
    }

    fn exchange(&mut self, parcel: Parcel, round: Round) {
        self.carriage.exchange(&parcel, round, self.by);
        self.exchanged.push_back(parcel);
    }

    fn exchanged(&mut self) -> Parcel {
        self.exchanged.pop_front().expect("what is waited for was given")
    }
}
