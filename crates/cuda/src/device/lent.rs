//! This device's memory and stream as another program in this process uses them: PyTorch, which shares the GPU's primary context.
//!
//! It does not know what the program puts there.

use super::settlements::Found;
use super::{CudaDevice, PendingSums};
use crate::values::{Values, ValuesMut};
use dtrain_engine::{LendsMemory, LentFloats};

impl LendsMemory for CudaDevice {
    fn lent(of: Values<'_>) -> LentFloats {
        let floats = of.floats();
        LentFloats { address: floats.address(), elements: floats.len() }
    }

    fn lent_mut(of: &ValuesMut<'_>) -> LentFloats {
        Self::lent(of.read())
    }

    fn lent_scale(&self) -> u64 {
        self.settlements().address_of(Found::LossScale)
    }

    fn lent_sums(&self) -> (PendingSums, u64) {
        let (pending, totals) = self.workspace().next_loss();
        (pending, totals.sums.address())
    }
}
