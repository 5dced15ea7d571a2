//! Parameters that come to a device when a pass needs them, those of one stage at a time. This file does not know what brings them.

use super::lent::{lay_into, slot};
use crate::OwnMemory;
use crate::device_shards::DeviceShards;
use crate::error::EngineError;
use crate::gathering::{BringsParameters, OwnParameters};
use crate::layout::Section;
use crate::stages::Parameters;
use std::ops::Range;

/// Parameters that are brought to the device, those of one stage at a time.
pub(super) struct Brought<'a, D: OwnMemory> {
    device: &'a D,
    /// For those of the longest stage.
    memory: &'a mut D::Floats,
    held: &'a DeviceShards<D>,
    section: Section,
    by: &'a mut dyn BringsParameters,
    /// Those that are there.
    there: Range<usize>,
    /// How bringing them went: a pass cannot be told.
    went: Result<(), EngineError>,
}

impl<'a, D: OwnMemory> Brought<'a, D> {
    /// For one pass by a section: nothing is there yet.
    pub fn new(
        (device, memory): (&'a D, &'a mut D::Floats),
        held: &'a DeviceShards<D>,
        section: Section,
        by: &'a mut dyn BringsParameters,
    ) -> Self {
        Self { device, memory, held, section, by, there: 0..0, went: Ok(()) }
    }

    /// The pass is over. *Errors*: of the device.
    pub fn finish(self) -> Result<(), EngineError> {
        self.went
    }
}

impl<D: OwnMemory> Parameters<D> for Brought<'_, D> {
    fn part(&mut self, part: Range<usize>) -> D::Ref<'_> {
        if self.there != part && !part.is_empty() {
            let Self { device, memory, held, section, by, went, .. } = self;
            let lay = &mut |run: Range<usize>, to: &_, at| {
                lay_into(*device, held.part(*section, &run), to, at..at + run.len());
            };
            if let Some((lent, place)) = by.bring_there(*section, part.clone(), lay) {
                let lent = slot::<D>(&lent);
                device.copy_to(D::part(D::look(&lent), place), memory, 0);
                self.there = part.clone();
                return D::part(D::look(self.memory), 0..part.len());
            }
            let mut fetched = Ok(());
            let values = by.bring(*section, part.clone(), &mut |elements, to| {
                if fetched.is_ok() {
                    fetched = held.read(*device, *section, elements.start, to);
                }
            });
            if went.is_ok() {
                *went = device.send(values, memory).and(fetched);
            }
            self.there = part.clone();
        }
        D::part(D::look(self.memory), 0..part.len())
    }
}

/// Zeros, for a pass that nobody wants.
pub(super) struct Zeros(pub Vec<f32>);

impl BringsParameters for Zeros {
    fn bring(&mut self, _: Section, elements: Range<usize>, _: &mut OwnParameters<'_>) -> &[f32] {
        &self.0[..elements.len()]
    }
}
