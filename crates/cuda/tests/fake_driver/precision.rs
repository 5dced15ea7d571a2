//! A device that rounds to halves behind the driver: which kernels it launches, how often it asks for memory, that nobody takes
//! it for one in f32, and what becomes of gradients that f16 cannot hold.

use crate::rig::Rig;
use crate::stand_in::{ids, numbers};
use crate::support::{Fake, child, device_in, gpu, is_child};
use crate::training::train;
use dtrain_cuda::driver::Gpu;
use dtrain_cuda::{CudaDevice, Precision};
use dtrain_engine::device::{Activation, Attended, AttentionShape, Conv3dShape, Device, Mask, Operands};
use dtrain_engine::models::{MlpOptions, mlp};
use dtrain_engine::stage::Shape;
use dtrain_engine::{
    BatchView, DecayGroup, DeviceReplica, EngineError, Inputs, Loss, LossScaling, LrSchedule, Model,
    Optimizer, Replica, Rule, Section, Targets, device_fingerprint, micro_batch,
};
use dtrain_types::{MicroBatch, Seed, Step};
use std::sync::Arc;

/// Attention of heads of so many elements, forwards and backwards.
fn attend(gpu: &Arc<CudaDevice>, head: usize) {
    let shape = AttentionShape { batch: 1, time: 9, heads: 2, head, mask: Mask::Causal };
    let out = 18 * head;
    let (qkv, dy) = (gpu.put_activations(&numbers(1, 3 * out)), gpu.put_activations(&numbers(2, out)));
    let (mut y, mut dqkv) = (gpu.empty_activations(out), gpu.empty_activations(3 * out));
    let [saved, scratch] = [gpu.attention_saved(&shape), gpu.attention_scratch(&shape)];
    let (mut saved, mut scratch) = (gpu.empty(saved), gpu.empty(scratch));
    let qkv = gpu.ra(&qkv, 3 * out);
    gpu.attention(&shape, qkv, gpu.wa(&mut y, out), gpu.w(&mut saved), gpu.w(&mut scratch));
    let inputs = Attended { qkv, y: gpu.ra(&y, out), saved: gpu.r(&saved), dy: gpu.ra(&dy, out) };
    gpu.attention_gradient(&shape, inputs, gpu.wa(&mut dqkv, 3 * out), gpu.w(&mut scratch));
    gpu.finish().expect("a device that works");
}

/// A convolution over a volume of 3 x 4 x 5, forwards and backwards.
fn convolve(gpu: &Arc<CudaDevice>) {
    let (size, kernel, one) = ([3, 4, 5], [2, 2, 2], [1; 3]);
    let shape =
        Conv3dShape { images: 1, channels: 2, size, outputs: 3, kernel, stride: one, padding: [0; 3] };
    let (x, dy) = (gpu.put_activations(&numbers(1, 120)), gpu.put_activations(&numbers(3, 72)));
    let w = gpu.put_parameters(&numbers(2, 48));
    let (mut y, mut dx, mut dw) = (gpu.empty_activations(72), gpu.empty_activations(120), gpu.empty(48));
    let mut scratch = gpu.empty(gpu.conv_scratch(&shape).expect("there are such convolutions"));
    let none = Activation::None;
    let (x, dy) = (gpu.ra(&x, 120), gpu.ra(&dy, 72));
    let operands = Operands { x, w: gpu.r(&w), bias: None };
    gpu.conv(&shape, operands, none, gpu.wa(&mut y, 72), gpu.w(&mut scratch));
    gpu.conv_input_gradient(&shape, gpu.r(&w), dy, gpu.wa(&mut dx, 120), gpu.w(&mut scratch));
    gpu.conv_weight_gradient(&shape, x, dy, gpu.w(&mut dw), None, gpu.w(&mut scratch));
    gpu.finish().expect("a device that works");
}

/// Trains and attends on a device in one kind of halves, whose word is in the names of its kernels, and counts launches.
fn launches_of(precision: Precision, word: &str) {
    let Some(gpu) = device_in(precision) else { return };
    let (fake, mut memory) = (Fake::new(), Vec::new());
    train(&gpu, |_| memory.push(fake.memory_calls()));
    assert!(memory.iter().all(|count| *count == memory[0]), "a step allocates: {memory:?}");
    let calls = |name: &str| fake.calls(&name.replace("half", word));
    let products = ["product_half_nt_64", "product_half_nn_64", "product_half_tn_64"];
    // Two layers and three steps; each layer's inputs have a gradient, because convolutions are before them.
    assert_eq!(products.map(calls), [6, 6, 6]);
    // No kernels over f32, in any tile.
    let plain = |name: &str| {
        let tiles = ["64x64", "32x64", "32x256", "64x128", "128x128"];
        tiles.map(|tile| fake.calls(&format!("{name}_{tile}"))).iter().sum::<u64>()
    };
    assert_eq!(plain("product"), 0);
    // The copy of the parameters, as they come from the host; in a step nothing is converted.
    assert_eq!([calls("to_half"), calls("from_half")], [1, 0]);
    let convolutions = ["conv2d_half", "conv2d_half_input_gradient", "conv2d_half_weight_gradient"];
    // Nobody wants the gradient of the images.
    assert_eq!(convolutions.map(calls), [6, 3, 6]);
    let in_f32 = ["conv2d", "conv2d_input_gradient", "conv2d_weight_gradient"];
    assert_eq!(in_f32.map(plain), [0; 3]);
    convolve(&gpu);
    let over_volumes = ["conv3d_half", "conv3d_half_input_gradient", "conv3d_half_weight_gradient"];
    assert_eq!(over_volumes.map(calls), [1; 3]);
    assert_eq!(convolutions.map(calls), [6, 3, 6]);
    let in_f32 = ["conv3d", "conv3d_input_gradient", "conv3d_weight_gradient"];
    assert_eq!(in_f32.map(plain), [0; 3]);
    attend(&gpu, 16);
    let attention =
        ["attention_half_32", "attention_half_queries_32", "attention_half_keys_32", "attention_32"];
    assert_eq!(attention.map(calls), [1, 1, 1, 0]);
    attend(&gpu, 20);
    assert_eq!(attention.map(calls), [1, 1, 1, 1], "no head of halves has 20 elements");
    assert_eq!(fake.wrong(), "");
    println!("\nonly those of {word}");
}

/// What the children of the next test do: alone in their processes, because launches are counted.
#[test]
fn count_launches_of_bf16() {
    if is_child() {
        launches_of(Precision::Bf16, "bf16");
    }
}

#[test]
fn count_launches_of_f16() {
    if is_child() {
        launches_of(Precision::F16, "f16");
    }
}

#[test]
fn a_model_in_halves_is_computed_by_the_kernels_of_its_kind_and_no_step_asks_for_memory() {
    if gpu().is_some() {
        for word in ["bf16", "f16"] {
            let said = child(&format!("precision::count_launches_of_{word}"), &[]);
            assert!(said.contains(&format!("only those of {word}")), "{said}");
        }
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
    let [plain, bf16, f16] = [Precision::F32, Precision::Bf16, Precision::F16].map(self_test);
    assert!(plain != bf16 && plain != f16 && bf16 != f16);
    assert_eq!(f16, self_test(Precision::F16), "two tests of one device differ");
}

/// Steps of a small model in f16, up to the second that is not skipped: how many were, and the state in the end.
fn overflow(gpu: &Arc<Gpu>, start: f32) -> (usize, [u8; 32]) {
    let device = CudaDevice::new(gpu, Precision::F16).expect("a stream");
    let chain = mlp(&MlpOptions { hidden: vec![20], ..MlpOptions::default() }, 10).expect("it fits");
    let model = Model::new(&device, chain, Shape::values(3, &[64]), Loss::cross_entropy()).expect("it fits");
    let model = model.scaling_loss(LossScaling { start, interval: 2_000 });
    let optimizer =
        Optimizer { decays: DecayGroup::All, ..Optimizer::new(Rule::adamw(), LrSchedule::constant(1e-2)) };
    let mut replica = DeviceReplica::new(device, model, optimizer, Seed(7)).expect("memory");
    let (values, classes) = (numbers(1, 3 * 64), ids(2, 3, 10));
    let batch = BatchView { rows: 3, inputs: Inputs::Values(&values), targets: Targets::Classes(&classes) };
    let started = replica.bring_state().expect("a device that works").clone();
    let mut gradient = vec![f32::NAN; replica.about().gradient_len()];
    let (mut skipped, mut made, mut factor, mut losses) = (0, 0, start, Vec::new());
    for step in (1..).map(Step) {
        let sums =
            micro_batch(&mut replica, step, MicroBatch(0), &batch, &mut gradient).expect("it fits").sums;
        let info = replica.update(step, &gradient, sums.weight, 3).expect("made or skipped");
        losses.push(sums.loss);
        let state = replica.bring_state().expect("a device that works");
        let scale = info.loss_scale.expect("it is scaled");
        assert_eq!(
            state.section(Section::Stats),
            [scale.factor, scale.finite_steps as f32],
            "what the device has"
        );
        if info.skipped() {
            factor /= 2.0;
            skipped += 1;
            assert_eq!(made, 0, "a scale that has fitted goes on to fit");
            let parameters = state.section(Section::Parameters);
            assert!(parameters == started.section(Section::Parameters), "step {step} was skipped");
        } else {
            made += 1;
        }
        assert_eq!((scale.factor, scale.finite_steps), (factor, made));
        if made == 2 {
            break;
        }
    }
    assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
    assert!(losses[skipped + 1] < losses[0], "it has learned: {losses:?}");
    (skipped, replica.bring_state().expect("a device that works").state_digest())
}

#[test]
fn gradients_that_f16_cannot_hold_skip_steps_until_the_scale_fits() {
    let Some(gpu) = gpu() else { return };
    let (skipped, digest) = overflow(&gpu, 4_194_304.0);
    assert!((2..=10).contains(&skipped), "{skipped} steps");
    assert_eq!(overflow(&gpu, 4_194_304.0), (skipped, digest), "the same run has other bits");
    assert_eq!(overflow(&gpu, 1024.0).0, 0, "a scale that fits");
    assert_eq!(Fake::new().wrong(), "");
}
