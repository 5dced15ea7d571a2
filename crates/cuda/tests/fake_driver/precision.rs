//! A device in bf16 behind the driver: which kernels it launches, how often it asks for memory, and that nobody takes it for one
//! in f32.

use crate::rig::Rig;
use crate::stand_in::numbers;
use crate::support::{Fake, child, device_in, gpu, is_child};
use crate::training::train;
use dtrain_cuda::{CudaDevice, Precision};
use dtrain_engine::device::{Attention, Device};
use dtrain_engine::{EngineError, device_fingerprint};
use std::sync::Arc;

/// Attention of heads of so many elements, forwards and backwards.
fn attend(gpu: &Arc<CudaDevice>, head: usize) {
    let shape = Attention { batch: 1, time: 9, heads: 2, head };
    let out = 18 * head;
    let (qkv, dy) = (gpu.put(&numbers(1, 3 * out)), gpu.put(&numbers(2, out)));
    let (mut y, mut dqkv) = (gpu.empty(out), gpu.empty(3 * out));
    let [saved, scratch] = [gpu.attention_saved(&shape), gpu.attention_scratch(&shape)];
    let (mut saved, mut scratch) = (gpu.empty(saved), gpu.empty(scratch));
    gpu.attention(&shape, gpu.r(&qkv), gpu.w(&mut y), gpu.w(&mut saved), gpu.w(&mut scratch));
    let (y, saved, dqkv) = (gpu.r(&y), gpu.r(&saved), gpu.w(&mut dqkv));
    gpu.attention_gradient(&shape, gpu.r(&qkv), y, saved, gpu.r(&dy), dqkv, gpu.w(&mut scratch));
    gpu.finish().expect("a device that works");
}

/// What the child of the next test does: alone in its process, because launches are counted.
#[test]
fn count_launches() {
    if is_child()
        && let Some(gpu) = device_in(Precision::Bf16)
    {
        let (fake, mut memory) = (Fake::new(), Vec::new());
        train(&gpu, |_| memory.push(fake.memory_calls()));
        assert!(memory.iter().all(|count| *count == memory[0]), "a step allocates: {memory:?}");
        let products = ["product_bf16_nt_64", "product_bf16_nn_64", "product_bf16_tn_64", "product"];
        // Two layers and three steps; each layer's inputs have a gradient, because convolutions are before them.
        assert_eq!(products.map(|name| fake.calls(name)), [6, 6, 6, 0]);
        assert_eq!(fake.calls("to_bf16"), 2 * 18);
        let convolutions = ["conv2d_bf16", "conv2d_bf16_input_gradient", "conv2d_bf16_weight_gradient"];
        // Nobody wants the gradient of the images.
        assert_eq!(convolutions.map(|name| fake.calls(name)), [6, 3, 6]);
        let plain = ["conv2d", "conv2d_input_gradient", "conv2d_weight_gradient"];
        assert_eq!(plain.map(|name| fake.calls(name)), [0; 3]);
        attend(&gpu, 16);
        let attention =
            ["attention_bf16_32", "attention_bf16_queries_32", "attention_bf16_keys_32", "attention_32"];
        assert_eq!(attention.map(|name| fake.calls(name)), [1, 1, 1, 0]);
        attend(&gpu, 20);
        assert_eq!(attention.map(|name| fake.calls(name)), [1, 1, 1, 1], "no head of bf16 has 20 elements");
        assert_eq!(fake.wrong(), "");
        println!("\nonly those of bf16");
    }
}

#[test]
fn a_model_in_bf16_is_computed_by_the_kernels_of_bf16_and_no_step_asks_for_memory() {
    if gpu().is_some() {
        let said = child("precision::count_launches", &[]);
        assert!(said.contains("only those of bf16"), "{said}");
    }
}

#[test]
fn the_fingerprint_tells_the_precisions_apart() {
    let Some(gpu) = gpu() else { return };
    let self_test = |precision| {
        let open =
            || CudaDevice::new(&gpu, precision).map_err(|error| EngineError::Device(error.to_string()));
        device_fingerprint(open, "a GPU".into(), 1).expect("a device that works").self_test
    };
    let [plain, rounded] = [Precision::F32, Precision::Bf16].map(self_test);
    assert_ne!(plain, rounded);
    assert_eq!(rounded, self_test(Precision::Bf16), "two tests of one device differ");
}
