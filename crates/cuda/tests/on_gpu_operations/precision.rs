//! What a device in bf16 or f16 rounds, what it leaves alone, and the same bits again.

use crate::operations::{self, Results};
use crate::real_sizes;
use crate::rig::Rig;
use crate::stand_in::memory::distance;
use crate::stand_in::numbers;
use crate::support::{Fake, device_in};
use dtrain_cuda::{CudaDevice, Precision};
use dtrain_engine::device::{Device, Product, Strides, Write};
use std::sync::Arc;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Runs operations in every precision. Those that are named may be off by a hundredth and have to differ, the others may not.
fn compare(run: impl Fn(&Arc<CudaDevice>, &mut Results), rounded: &[&str]) {
    let Some(plain) = device_in(Precision::F32) else { return };
    let results = |gpu: &Arc<CudaDevice>| {
        let mut results = Results::new();
        run(gpu, &mut results);
        results
    };
    let plain = results(&plain);
    for precision in [Precision::Bf16, Precision::F16] {
        let gpu = device_in(precision).expect("as above");
        compared(precision, rounded, [&results(&gpu), &results(&gpu), &plain]);
    }
    assert_eq!(Fake::new().wrong(), "");
}

fn compared(precision: Precision, rounded: &[&str], [got, again, plain]: [&Results; 3]) {
    assert!(rounded.iter().all(|name| got.iter().any(|(what, _)| what == name)), "{rounded:?}");
    for (((what, got), (_, again)), (_, plain)) in got.iter().zip(again).zip(plain) {
        assert_eq!(bits(got), bits(again), "{what} in {precision:?} again");
        assert_eq!(
            bits(got) != bits(plain),
            rounded.contains(what),
            "{what} in {precision:?}: whether it has other bits"
        );
        let wanted: Vec<f64> = plain.iter().map(|v| f64::from(*v)).collect();
        let off = distance(got.iter().map(|v| f64::from(*v)), &wanted);
        assert!(off.is_some_and(|off| off <= 1e-2), "{what} in {precision:?} is off by {off:?}");
    }
}

/// Attention among them has heads of 20 elements, for which there is no kernel of halves.
#[test]
fn of_all_operations_on_awkward_sizes_only_products_and_convolutions_are_rounded() {
    let rounded = [
        "linear",
        "linear_gelu",
        "product",
        "conv",
        "conv_input_gradient",
        "conv_weight_gradient",
        "conv of volumes",
        "gradient of volumes",
        "gradient of their weights",
    ];
    compare(|gpu, to| to.extend(operations::all(gpu)), &rounded);
}

#[test]
fn a_layer_of_a_real_model_is_rounded_but_for_its_bias() {
    compare(real_sizes::layer, &["a layer", "its inputs", "its weights"]);
}

#[test]
fn a_convolution_of_a_real_model_is_rounded_but_for_its_bias() {
    compare(real_sizes::convolution, &["a convolution", "its images", "its weights"]);
    compare(real_sizes::convolution_of_volumes, &["a convolution", "its images", "its weights"]);
}

#[test]
fn of_a_block_s_operations_only_attention_is_rounded() {
    compare(real_sizes::attention, &["attention", "its gradient"]);
    compare(real_sizes::beside_attention, &[]);
}

#[test]
fn a_product_that_no_layer_has_is_that_of_f32() {
    let run = |gpu: &Arc<CudaDevice>, to: &mut Results| {
        let (x, y) = (gpu.put(&numbers(1, 400)), gpu.put(&numbers(2, 400)));
        let turned = [Strides::transposed(9), Strides::transposed(13)];
        let strided = [Strides { row: 40, col: 3 }, Strides { row: 2, col: 30 }];
        for (what, [a, b]) in [("columns by columns", turned), ("strides", strided)] {
            let mut c = gpu.empty(99);
            let shape = Product { m: 9, n: 11, k: 13, a, b, c_row: 11, write: Write::Set };
            gpu.product(&shape, gpu.r(&x), gpu.r(&y), gpu.w(&mut c));
            to.push((what, gpu.get(&c)));
        }
    };
    compare(run, &[]);
}
