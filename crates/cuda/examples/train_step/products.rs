//! The products of a workload that a library is faster at, chosen before it is measured.

use crate::asked::Asked;
use crate::machine::cublaslt_on;
use crate::started::Started;
use dtrain_cuda::driver::{DriverError, Gpu};
use dtrain_cuda::libraries::choosing::choose;
use dtrain_cuda::libraries::cublaslt::CublasLt;
use dtrain_cuda::libraries::pins::ProductPins;
use dtrain_cuda::{CudaDevice, Precision};
use dtrain_engine::EngineError;
use std::sync::Arc;
use std::time::Instant;

/// What was chosen, and the library.
pub struct Products {
    pins: ProductPins,
    library: Arc<CublasLt>,
}

impl Products {
    /// Those of one step; nothing where there is no library. They are listed on the standard error.
    pub fn chosen(asked: &Asked, precision: Precision, gpu: &Arc<Gpu>) -> Result<Option<Self>, EngineError> {
        let Some(library) = cublaslt_on(gpu) else { return Ok(None) };
        let mut started = Started::new(asked, precision, || CudaDevice::new(gpu, precision))?;
        started.begin();
        started.step(1);
        started.finish();
        let keys = started.replica.device().products_asked_for();
        drop(started);
        let begun = Instant::now();
        let mut pins = ProductPins::new(&gpu.context().about().name, library.version());
        for key in &keys {
            let pin = choose(gpu, &library, key)?;
            let tera = |took: u64| key.operations() as f64 / took.max(1) as f64 / 1e6;
            let [found, own] = pin.took;
            let out = key.layouts.out;
            eprintln!(
                "product {}x{} {:?} {:?} adds {}: {found} us ({:.0} TFLOP/s), own {own} us ({:.0}){}",
                out.columns,
                out.rows,
                key.numbers,
                key.finish,
                key.adds,
                tera(found),
                tera(own),
                if pin.algorithm.is_none() { ", own is taken" } else { "" }
            );
            pins.put(pin);
        }
        eprintln!("{} products were chosen in {:.1} s", keys.len(), begun.elapsed().as_secs_f64());
        Ok(Some(Self { pins, library }))
    }

    /// A device whose products these are.
    pub fn given_to(&self, device: CudaDevice) -> Result<CudaDevice, DriverError> {
        Ok(device.with_products(&self.pins, &self.library)?)
    }
}
