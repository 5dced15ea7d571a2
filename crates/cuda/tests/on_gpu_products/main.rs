//! Products by cuBLASLt on a GPU: each algorithm that is chosen gives what dtrain's own kernels give, within the rounding of halves, and
//! the same bits a hundred times, beside a stream that keeps the GPU busy.
//!
//! Without a GPU it says so, and runs itself once more on the fakes, with small shapes.

#[path = "../on_gpu/machine.rs"]
mod machine;
#[path = "../on_gpu/repeated.rs"]
mod repeated;

use dtrain_cuda::driver::{Buffer, Gpu};
use dtrain_cuda::libraries::choosing::choose;
use dtrain_cuda::libraries::cublaslt::CublasLt;
use dtrain_cuda::libraries::pins::ProductPins;
use dtrain_cuda::libraries::product::Finish;
use dtrain_cuda::{CudaDevice, Precision, SliceMut, ValuesMut};
use dtrain_engine::device::{Activation, Device, Gelu, LinearShape, Operands, Product, Strides, Write};
use machine::{cublaslt_on, is_fake};
use repeated::{Busy, Numbers, WORKS, exact, near_and_the_same, on_a_gpu_or_the_fakes, one_by_one, read};
use std::sync::Arc;

/// Repeats of a product whose bits are compared.
const REPEATS: usize = 100;
/// Operations of the least product that is tried.
const LEAST: u64 = 1 << 16;

/// What a layer multiplies.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Forward(Activation),
    /// With what it is added to before it is rounded.
    ForwardPlus,
    /// GELU of it, by the hyperbolic tangent.
    ForwardGelu,
    Inputs,
    /// Added to halves that are there, as what goes back from one place of a sequence to the one before.
    InputsAdded,
    /// Added to what is there.
    Weights,
}

/// Rows, inputs, outputs of the layers of GPT-2 small, its head, and one whose outputs are an odd number; on the fakes smaller ones.
fn layers() -> Vec<[usize; 3]> {
    if is_fake() {
        return vec![[32, 48, 40], [40, 32, 27]];
    }
    let rows = 16 * 1024;
    let blocks = [[rows, 768, 2304], [rows, 768, 768], [rows, 768, 3072], [rows, 3072, 768]];
    let others = [[4096, 768, 50_257], [1000, 4096, 1000]];
    blocks.into_iter().chain(others).collect()
}

/// One product of a layer, and its result as f32.
struct Case {
    kind: Kind,
    shape: [usize; 3],
    x: Numbers,
    w: Numbers,
    dy: Numbers,
    bias: Numbers,
    /// What GELU is of.
    z: Numbers,
}

impl Case {
    fn outputs(&self) -> (usize, bool) {
        let [rows, inputs, outputs] = self.shape;
        match self.kind {
            Kind::Forward(_) | Kind::ForwardPlus | Kind::ForwardGelu => {
                (rows * outputs.next_multiple_of(8), true)
            }
            Kind::Inputs | Kind::InputsAdded => (rows * inputs, true),
            Kind::Weights => (outputs * inputs, false),
        }
    }

    /// Puts the product on the device's stream, into memory that held quarters (in halves something else).
    fn run(&self, device: &CudaDevice, room: &Buffer<f32>) {
        let (len, _) = self.outputs();
        let [rows, inputs, outputs] = self.shape;
        // SAFETY: the memory is there as long as `room`, and only what is on one stream at a time has it.
        let floats = || ValuesMut::from(unsafe { SliceMut::<f32>::new(room.address(), len) });
        device.fill(floats(), 0.25);
        let half = self.x.half;
        let linear = LinearShape { rows, inputs, outputs };
        let pitch = outputs.next_multiple_of(8);
        // SAFETY: as above; halves take a part of it.
        let y = || ValuesMut::halves_of(unsafe { SliceMut::new(room.address(), len) }, half);
        let operands =
            Operands { x: self.x.halves(), w: self.w.with_copy(), bias: Some(self.bias.with_copy()) };
        match self.kind {
            Kind::Forward(activation) => device.linear(linear, operands, activation, y()),
            Kind::ForwardPlus => device.linear_plus(linear, operands, self.dy.halves(), y()),
            Kind::ForwardGelu => {
                // SAFETY: as above.
                let z = unsafe { SliceMut::new(self.z.memory.address(), self.z.memory.len()) };
                device.linear_gelu(linear, operands, Gelu::Tanh, ValuesMut::halves_of(z, half), y());
            }
            Kind::Inputs | Kind::InputsAdded => {
                let adds = matches!(self.kind, Kind::InputsAdded);
                if adds {
                    device.fill(y(), 0.25);
                }
                let shape = Product {
                    m: rows,
                    n: inputs,
                    k: outputs,
                    a: Strides::rows(pitch),
                    b: Strides::rows(inputs),
                    c_row: inputs,
                    write: if adds { Write::Add } else { Write::Set },
                };
                device.product(&shape, self.dy.halves(), self.w.with_copy(), y());
            }
            Kind::Weights => {
                let shape = Product {
                    m: outputs,
                    n: inputs,
                    k: rows,
                    a: Strides::transposed(pitch),
                    b: Strides::rows(inputs),
                    c_row: inputs,
                    write: Write::Add,
                };
                device.product(&shape, self.dy.halves(), self.x.halves(), floats());
            }
        }
    }
}

fn holds(gpu: &Arc<Gpu>, library: &Arc<CublasLt>, precision: Precision) {
    let half = precision.half().expect("halves");
    let own = one_by_one(gpu, precision);
    let busy = Busy::new(gpu);
    let (mut chosen, mut by_library) = (0, 0);
    for shape in layers() {
        let [rows, inputs, outputs] = shape;
        let pitch = outputs.next_multiple_of(8);
        for kind in [
            Kind::Forward(Activation::None),
            Kind::Forward(Activation::Relu),
            Kind::ForwardPlus,
            Kind::ForwardGelu,
            Kind::Inputs,
            Kind::InputsAdded,
            Kind::Weights,
        ] {
            let is_odd = matches!(kind, Kind::ForwardGelu) && outputs != pitch;
            if is_odd || (matches!(kind, Kind::ForwardPlus | Kind::ForwardGelu) && outputs > 4096) {
                continue;
            }
            let numbers = |len, seed| Numbers::new(&own, half, len, seed);
            let parameters = |len, seed| Numbers::parameters(&own, half, len, seed);
            let case = Case {
                kind,
                shape,
                x: numbers(rows * inputs, 1),
                w: parameters(outputs * inputs, 2),
                dy: numbers(rows * pitch, 3),
                bias: parameters(outputs, 4),
                z: numbers(rows * pitch, 5),
            };
            let kept = |device: &CudaDevice| {
                let mut kept = vec![0u16; rows * pitch];
                device.download(case.z.memory.read(), &mut kept).expect(WORKS);
                kept.into_iter().map(|bits| exact(half, bits)).collect::<Vec<f32>>()
            };
            let noting = one_by_one(gpu, precision).noting_products(LEAST);
            let (len, are_halves) = case.outputs();
            let stored = are_halves.then_some(half);
            let room = Buffer::new(gpu.context(), len).expect("memory");
            case.run(&noting, &room);
            let (wanted, was_kept) = (read(&noting, &room, stored, 0..len), kept(&noting));
            let keys = noting.products_asked_for();
            if keys.is_empty() {
                println!("{kind:?} of {shape:?}: no product for a library");
                continue;
            }
            let mut pins = ProductPins::new(&gpu.context().about().name, library.version());
            for key in &keys {
                let mut pin = choose(gpu, library, key).expect(WORKS);
                if key.finish == Finish::BiasGelu {
                    // Whether it is faster than a pass behind is not asked: it has to be right.
                    let offered = library.candidates(key).expect("an algorithm");
                    pin.algorithm = pin.algorithm.or(offered.first().copied());
                }
                pins.put(pin);
            }
            let [found, own_took] = pins.chosen[0].took;
            chosen += 1;
            by_library += usize::from(!pins.is_empty());
            println!("{kind:?} of {shape:?}: {found} us, own {own_took} us");
            let with = one_by_one(gpu, precision).with_products(&pins, library).expect("what was chosen");
            let repeats = (&busy, if is_fake() { 3 } else { REPEATS });
            let result = |part| read(&with, &room, stored, part);
            near_and_the_same((kind, shape), (&wanted, 0..len), repeats, || case.run(&with, &room), result);
            let near =
                was_kept.iter().zip(kept(&with)).all(|(a, b)| (a - b).abs() <= 0.01 * a.abs().max(1.0));
            assert!(near, "{kind:?} of {shape:?}: what is kept for the gradient");
        }
    }
    println!("{chosen} products in {}, {by_library} of them by the library", precision.name());
    assert!(chosen > 0, "no shape is one for a library");
}

fn checked(test: &str, precision: Precision) {
    on_a_gpu_or_the_fakes(test, "libfake_cublaslt.so", "FAKE_CUBLASLT_DRIVER", |gpu| {
        if let Some(library) = cublaslt_on(gpu) {
            holds(gpu, &library, precision);
        }
    });
}

#[test]
fn what_the_library_does_in_bf16_is_right_and_has_the_same_bits_each_time() {
    checked("what_the_library_does_in_bf16_is_right_and_has_the_same_bits_each_time", Precision::Bf16);
}

#[test]
fn what_the_library_does_in_f16_is_right_and_has_the_same_bits_each_time() {
    checked("what_the_library_does_in_f16_is_right_and_has_the_same_bits_each_time", Precision::F16);
}
