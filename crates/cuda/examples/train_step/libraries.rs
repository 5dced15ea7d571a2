//! The products, convolutions and attention of a workload that a library is faster at, chosen before it is measured.

use crate::asked::Asked;
use crate::machine::{cublaslt_on, cudnn};
use crate::started::Started;
use dtrain_cuda::driver::{DriverError, Gpu};
use dtrain_cuda::libraries::attention::AttentionKey;
use dtrain_cuda::libraries::convolution::ConvolutionKey;
use dtrain_cuda::libraries::cublaslt::CublasLt;
use dtrain_cuda::libraries::cudnn::Cudnn;
use dtrain_cuda::libraries::pins::{AttentionPins, ConvolutionPins, ProductPins};
use dtrain_cuda::libraries::product::ProductKey;
use dtrain_cuda::libraries::{Libraries, choosing, choosing_attention, choosing_convolutions};
use dtrain_cuda::{CudaDevice, Precision};
use dtrain_engine::EngineError;
use std::sync::Arc;
use std::time::Instant;

/// What both took, and how fast that is.
fn words(operations: u64, [found, own]: [u64; 2], is_own: bool) -> String {
    let tera = |took: u64| operations as f64 / took.max(1) as f64 / 1e6;
    let taken = if is_own { ", own is taken" } else { "" };
    format!("{found} us ({:.0} TFLOP/s), own {own} us ({:.0}){taken}", tera(found), tera(own))
}

fn products(
    gpu: &Arc<Gpu>,
    library: &Arc<CublasLt>,
    keys: &[ProductKey],
) -> Result<ProductPins, DriverError> {
    let mut pins = ProductPins::new(&gpu.context().about().name, library.version());
    for key in keys {
        let pin = choosing::choose(gpu, library, key)?;
        let out = key.layouts.out;
        eprintln!(
            "product {}x{} {:?} {:?} adds {}: {}",
            out.columns,
            out.rows,
            key.numbers,
            key.finish,
            key.adds,
            words(key.operations(), pin.took, pin.algorithm.is_none())
        );
        pins.put(pin);
    }
    Ok(pins)
}

fn convolutions(
    gpu: &Arc<Gpu>,
    library: &Cudnn,
    keys: &[ConvolutionKey],
) -> Result<ConvolutionPins, DriverError> {
    let mut pins = ConvolutionPins::new(&gpu.context().about().name, library.version());
    for key in keys {
        let pin = choosing_convolutions::choose(gpu, library, key)?;
        let how = pin.algorithm.as_ref().map_or(String::new(), |pin| format!(", {pin}"));
        eprintln!(
            "convolution {:?} {:?} {:?} in {} parts: {}{how}",
            key.pass,
            key.numbers,
            key.shape(),
            key.parts(),
            words(key.operations(), pin.took, pin.algorithm.is_none())
        );
        pins.put(pin);
    }
    Ok(pins)
}

fn attention(gpu: &Arc<Gpu>, library: &Cudnn, keys: &[AttentionKey]) -> Result<AttentionPins, DriverError> {
    let mut pins = AttentionPins::new(&gpu.context().about().name, library.version());
    for key in keys {
        let pin = choosing_attention::choose(gpu, library, key)?;
        let how = pin.algorithm.as_ref().map_or(String::new(), |pin| {
            let (engine, knobs, mib) = (pin.choice.engine, &pin.choice.knobs, pin.workspace >> 20);
            format!(", engine {engine} {knobs:?} with {mib} MiB")
        });
        let words = words(key.operations(), pin.took, pin.algorithm.is_none());
        eprintln!("attention {:?} {:?} {:?}: {words}{how}", key.pass, key.numbers, key.shape());
        pins.put(pin);
    }
    Ok(pins)
}

/// For one step; nothing of a library that is not there. They are listed on the standard error.
pub fn chosen(asked: &Asked, precision: Precision, gpu: &Arc<Gpu>) -> Result<Libraries, EngineError> {
    let (cublaslt, cudnn) = (cublaslt_on(gpu), cudnn());
    if cublaslt.is_none() && cudnn.is_none() {
        return Ok(Libraries::default());
    }
    let mut started = Started::new(asked, precision, || CudaDevice::new(gpu, precision))?;
    started.begin();
    started.step(1);
    started.finish();
    let device = started.replica.device();
    let wanted = device.wanted();
    drop(started);
    let begun = Instant::now();
    let mut chosen = Libraries::default();
    if let Some(library) = cublaslt {
        chosen.products = Some((products(gpu, &library, &wanted.products)?, library));
    }
    if let Some(library) = cudnn {
        chosen.convolutions = Some((convolutions(gpu, &library, &wanted.convolutions)?, library));
        chosen.attention = Some((attention(gpu, &library, &wanted.attention)?, library));
    }
    eprintln!(
        "{} products, {} convolutions and {} of attention were chosen in {:.1} s",
        chosen.products.as_ref().map_or(0, |(pins, _)| pins.chosen.len()),
        chosen.convolutions.as_ref().map_or(0, |(pins, _)| pins.chosen.len()),
        chosen.attention.as_ref().map_or(0, |(pins, _)| pins.chosen.len()),
        begun.elapsed().as_secs_f64()
    );
    Ok(chosen)
}
