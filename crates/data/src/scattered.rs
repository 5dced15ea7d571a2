//! Some samples of a data set, from all over it: what is validated on where all that is held out would take too long.
//!
//! Which ones follows from the two counts alone, as in [`crate::split`]: runs with other seeds validate on the same samples.

use crate::split::scattered;
use crate::{DataError, Dataset, SampleSlot, SampleSpec};
use dtrain_types::Key;
use std::sync::Arc;

/// `count` samples of a data set, chosen once and for all and in its order; all of it where it has no more.
#[must_use]
pub fn scattered_samples(of: Arc<dyn Dataset>, count: u64) -> Arc<dyn Dataset> {
    let len = of.len();
    if count >= len {
        return of;
    }
    Arc::new(Scattered { samples: scattered(len, 0..count), of })
}

struct Scattered {
    of: Arc<dyn Dataset>,
    /// Their numbers in `of`, ascending.
    samples: Vec<u64>,
}

impl Dataset for Scattered {
    fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    fn spec(&self) -> SampleSpec {
        self.of.spec()
    }

    fn read(&self, index: u64, augment: Option<&Key>, sample: &mut SampleSlot<'_>) -> Result<(), DataError> {
        self.of.read(self.samples[index as usize], augment, sample)
    }

    fn label(&self, index: u64) -> Option<u32> {
        self.of.label(self.samples[index as usize])
    }
}
