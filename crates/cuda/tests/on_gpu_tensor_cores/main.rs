//! Products and attention of bf16 and f16 on the tensor cores of a GPU, where there is one: against f64, and bit for bit where no
//! rounding depends on an order. A misread page of PTX's manual shows here: a lane that holds another element than was
//! thought, a transposed tile.
//!
//! A program to be carried to a machine with a GPU (docs/design/HACKING.md). Here it runs on the fake driver, with a shape of each.

#[path = "../on_gpu/machine.rs"]
mod machine;
#[path = "../stand_in/mod.rs"]
mod stand_in;
#[path = "../on_gpu/support.rs"]
mod support;

mod exact;

use stand_in::*;
use support::{Fake, device, extent};

/// Runs checks on the GPU, each twice.
fn hold(checks: &[Check]) {
    let Some(device) = device() else { return };
    let mut wrong = Vec::new();
    for check in checks {
        let run = || {
            let queue = StandIn::through(&device);
            check(&queue, extent());
            queue.end()
        };
        let (told, bits) = run();
        wrong.extend(told);
        if run().1 != bits {
            wrong.push("a second run gives other bits".to_owned());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    device.finish().expect("a device that works");
    assert_eq!(Fake::new().wrong(), "");
}

#[test]
fn products_are_near_f64() {
    use product_half::*;
    hold(&[nt::<Bf16>, nn::<Bf16>, tn::<Bf16>, ranges::<Bf16>, linear::<Bf16>, linear_gelu::<Bf16>]);
    hold(&[nt::<F16>, nn::<F16>, tn::<F16>, ranges::<F16>, linear::<F16>, linear_gelu::<F16>]);
}

/// Tiles of 128 take large products, for which the fake GPU is too slow.
#[test]
fn large_products_are_near_f64_and_have_the_bits_of_small_tiles() {
    if !machine::is_fake() {
        use product_half::*;
        hold(&[large_nt::<Bf16>, large_nn::<Bf16>, large_tn::<Bf16>, large_linear_gelu::<Bf16>]);
        hold(&[large_nt::<F16>, large_nn::<F16>, large_tn::<F16>, large_linear_gelu::<F16>]);
    }
}

#[test]
fn attention_is_near_f64() {
    use attention_half::*;
    hold(&[forward_32::<Bf16>, forward_64::<Bf16>, forward_128::<Bf16>]);
    hold(&[gradient_32::<Bf16>, gradient_64::<Bf16>, gradient_128::<Bf16>]);
    hold(&[forward_32::<F16>, forward_64::<F16>, forward_128::<F16>]);
    hold(&[gradient_32::<F16>, gradient_64::<F16>, gradient_128::<F16>]);
}

#[test]
fn what_no_rounding_touches_has_the_very_bits() {
    use exact::*;
    hold(&[nt::<Bf16>, nn::<Bf16>, tn::<Bf16>, attention::<Bf16>]);
    hold(&[nt::<F16>, nn::<F16>, tn::<F16>, attention::<F16>]);
}

/// The same checks where no driver is between, so that both give these bits: the stand-in in C++, and the GPU.
#[test]
fn the_stand_in_gives_these_bits_too() {
    // Where this was carried to there are no sources to build.
    if machine::fake_library().is_none() || build::compiler().is_none() {
        return;
    }
    use exact::*;
    let bf16: [Check; 4] = [nt::<Bf16>, nn::<Bf16>, tn::<Bf16>, attention::<Bf16>];
    let f16: [Check; 4] = [nt::<F16>, nn::<F16>, tn::<F16>, attention::<F16>];
    for check in bf16.into_iter().chain(f16) {
        let queue = StandIn::new(0);
        check(&queue, Extent::Small);
        let (wrong, _) = queue.end();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn all_of_it_runs_to_its_end_on_the_fake_driver() {
    support::runs_on_the_fake(&[]);
}
