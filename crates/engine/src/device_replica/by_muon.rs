//! Updates by Muon on a device of its own: how they are made, and the memory for them.
//!
//! It does not know what a matrix is updated by; see `muon_update.rs`.

use crate::OwnMemory;
use crate::error::EngineError;
use crate::layout::Layout;
use crate::muon_update::{MuonStep, MuonUpdate};
use crate::newton_schulz::Orthogonaliser;
use crate::optimizer::{Optimizer, Rule};

/// How Muon updates a layout, and where.
pub(super) struct ByMuon<D: OwnMemory> {
    update: MuonUpdate,
    room: [D::Floats; Orthogonaliser::PARTS],
}

impl<D: OwnMemory> ByMuon<D> {
    /// What updates this layout, which has what Muon keeps, where that is its optimizer.
    ///
    /// *Errors*: there is no matrix for it; not enough memory.
    pub fn of(device: &D, optimizer: &Optimizer, layout: &Layout) -> Result<Option<Self>, EngineError> {
        let Rule::Muon(muon) = optimizer.rule else { return Ok(None) };
        let update = MuonUpdate::new(muon, optimizer, layout)?;
        let [x, y, gram, square] = update.memory().lengths(|len| device.activation_len(len));
        let part = |len| device.floats(len);
        Ok(Some(Self { update, room: [part(x)?, part(y)?, part(gram)?, part(square)?] }))
    }

    /// See [`MuonUpdate::rehearse`].
    pub fn rehearse(&mut self, device: &D) {
        self.update.rehearse(device, &mut self.room.each_mut().map(|part| D::take(part)));
    }

    /// See [`MuonUpdate::make`].
    pub fn make(&mut self, device: &D, step: MuonStep<'_, D>) {
        self.update.make(device, step, &mut self.room.each_mut().map(|part| D::take(part)));
    }
}
