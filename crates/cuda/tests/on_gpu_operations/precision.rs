//! Operations of real models over bf16 and f16: near those of f32, and the same bits again.

use crate::operations::Results;
use crate::real_sizes;
use crate::stand_in::memory::distance;
use crate::support::{Fake, device_in};
use dtrain_cuda::{CudaDevice, Precision};
use std::sync::Arc;

/// Runs operations in every precision: those over halves are off by a hundredth at most, and not by nothing.
fn compare(run: impl Fn(&Arc<CudaDevice>, &mut Results)) {
    let Some(plain) = device_in(Precision::F32) else { return };
    let results = |gpu: &Arc<CudaDevice>| {
        let mut results = Results::new();
        run(gpu, &mut results);
        results
    };
    let plain = results(&plain);
    for precision in [Precision::Bf16, Precision::F16] {
        let gpu = device_in(precision).expect("as above");
        let (got, again) = (results(&gpu), results(&gpu));
        let bits = |results: &Results| -> Vec<u32> {
            results.iter().flat_map(|(_, values)| values).map(|v| v.to_bits()).collect()
        };
        assert_eq!(bits(&got), bits(&again), "{precision:?} again");
        assert_ne!(bits(&got), bits(&plain), "nothing is rounded to {precision:?}");
        for ((what, got), (_, plain)) in got.iter().zip(&plain) {
            let wanted: Vec<f64> = plain.iter().map(|v| f64::from(*v)).collect();
            let off = distance(got.iter().map(|v| f64::from(*v)), &wanted);
            assert!(off.is_some_and(|off| off <= 1e-2), "{what} in {precision:?} is off by {off:?}");
        }
    }
    assert_eq!(Fake::new().wrong(), "");
}

#[test]
fn a_layer_of_a_real_model_in_halves_is_near_that_of_f32() {
    compare(real_sizes::layer);
}

#[test]
fn convolutions_of_a_real_model_in_halves_are_near_those_of_f32() {
    compare(real_sizes::convolution);
    compare(real_sizes::convolution_of_volumes);
}

#[test]
fn attention_of_a_real_model_in_halves_is_near_that_of_f32() {
    compare(real_sizes::attention);
    compare(real_sizes::attention_to_all);
}
