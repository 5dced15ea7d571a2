//! Memory for windows and for sums: of the host, or of the device in whose memory the slot of the collectives lies. It does not know what is in it.

use dtrain_collective::{CollectiveError, DeviceSlot};
use dtrain_engine::Flat;
use dtrain_types::DeviceMemory;

/// Floats of the host or of a device. To copy those of a device gives the same ones once more.
#[derive(Clone, Debug)]
pub enum Memory {
    /// Of the host.
    Home(Flat),
    /// Of a device.
    There(DeviceMemory),
}

impl Memory {
    /// *Panics* if it is of a device.
    #[must_use]
    pub fn home(&self) -> &Flat {
        match self {
            Self::Home(memory) => memory,
            Self::There(_) => panic!("{AWAY}"),
        }
    }

    /// *Panics* if it is of a device.
    pub fn home_mut(&mut self) -> &mut Flat {
        match self {
            Self::Home(memory) => memory,
            Self::There(_) => panic!("{AWAY}"),
        }
    }

    /// *Panics* if it is of a device.
    #[must_use]
    pub fn into_home(self) -> Flat {
        match self {
            Self::Home(memory) => memory,
            Self::There(_) => panic!("{AWAY}"),
        }
    }

    /// If it is of a device.
    #[must_use]
    pub fn there(&self) -> Option<&DeviceMemory> {
        if let Self::There(memory) = self { Some(memory) } else { None }
    }
}

/// Why it is the host's: who asks has looked.
const AWAY: &str = "memory of a device is not lent to the host";

/// Where memory is taken.
pub(crate) enum Site<'a> {
    /// From the host.
    Home,
    /// From the device that has this slot.
    There(&'a mut dyn DeviceSlot),
}

impl Site<'_> {
    /// Zeros. *Errors*: there is not so much.
    pub fn take(&mut self, floats: usize) -> Result<Memory, CollectiveError> {
        Ok(match self {
            Self::Home => Memory::Home(Flat::zeros(floats)),
            Self::There(slot) => Memory::There(slot.memory(floats)?),
        })
    }
}
