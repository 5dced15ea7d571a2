//! The seam for exchanges: collectives that add nothing, by which the ranks of a generation exchange floats.
//!
//! It does not know what the floats are, nor how they travel.

use dtrain_collective::{CollectiveError, Narrow, Op};

/// What the ranks of a generation exchange floats by.
pub trait Exchange: Send {
    /// The memory that collectives work in. It is asked for no more once one broke off.
    fn slot(&mut self) -> &mut [f32];

    /// Says what ranks need, and what they have, in the collectives that follow.
    fn narrow(&mut self, narrow: &Narrow);

    /// Runs a collective that adds nothing, from its start to its end.
    ///
    /// *Blocks* for all ranks. *Errors*: it broke off.
    fn gather(&mut self, op: &Op<'_>) -> Result<(), CollectiveError>;
}

/// What a pass exchanges by: nothing any more, once a collective broke off. A pass cannot be told, and goes on to its end.
pub(crate) struct Wires<'a> {
    by: &'a mut dyn Exchange,
    are_cut: bool,
}

impl<'a> Wires<'a> {
    pub fn new(by: &'a mut dyn Exchange) -> Self {
        Self { by, are_cut: false }
    }

    /// Whether a collective broke off: then no slot is lent any more.
    pub fn are_cut(&self) -> bool {
        self.are_cut
    }

    pub fn slot(&mut self) -> &mut [f32] {
        self.by.slot()
    }

    pub fn narrow(&mut self, narrow: &Narrow) {
        self.by.narrow(narrow);
    }

    /// [`Exchange::gather`].
    pub fn gather(&mut self, op: &Op<'_>) -> Result<(), CollectiveError> {
        let gathered = self.by.gather(op);
        self.are_cut |= gathered.is_err();
        gathered
    }
}
