//! A pass before the first step, which finds out whether there is memory for all operations.
//!
//! Operations take what they want beside their operands in their first pass, and have no other way than a panic to say that it
//! is not there: a step is not the place to find it missing.

use super::CudaDevice;
use dtrain_engine::{DeviceReplica, EngineError};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The replica, after the greatest pass that it can be asked for. Nothing of its state changes.
///
/// *Blocks* until the pass is done. *Errors*: [`EngineError::NoRoom`] where an operation found no memory,
/// [`EngineError::Device`] for everything else that the device failed in.
pub fn rehearsed(mut replica: DeviceReplica<CudaDevice>) -> Result<DeviceReplica<CudaDevice>, EngineError> {
    match catch_unwind(AssertUnwindSafe(|| replica.rehearse())) {
        Ok(made) => made.map(|()| replica),
        Err(panic) => match panic.downcast::<String>() {
            Ok(words) if replica.device().workspace().is_short() => Err(EngineError::NoRoom(*words)),
            Ok(words) => Err(EngineError::Device(*words)),
            Err(panic) => resume_unwind(panic),
        },
    }
}
