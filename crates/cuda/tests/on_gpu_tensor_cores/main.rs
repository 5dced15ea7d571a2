//! Products and attention of bf16 on the tensor cores of a GPU, where there is one: against f64, and bit for bit where no
//! rounding depends on an order. A misread page of PTX's manual shows here: a lane that holds another element than was
//! thought, a transposed tile.
//!
//! A program to be carried to a machine with a GPU (docs/HACKING.md). Here it runs on the fake driver, with a shape of each.

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
    hold(&[product_bf16::nt, product_bf16::nn, product_bf16::tn, product_bf16::linear]);
}

/// Tiles of 128 take large products, for which the fake GPU is too slow.
#[test]
fn large_products_are_near_f64_and_have_the_bits_of_small_tiles() {
    if !machine::is_fake() {
        hold(&[product_bf16::large_nt, product_bf16::large_nn, product_bf16::large_tn]);
    }
}

#[test]
fn attention_is_near_f64() {
    use attention_bf16::*;
    hold(&[forward_32, gradient_32, forward_64, gradient_64, forward_128, gradient_128]);
}

#[test]
fn what_no_rounding_touches_has_the_very_bits() {
    hold(&[exact::nt, exact::nn, exact::tn, exact::attention]);
}

/// The same checks where no driver is between, so that both give these bits: the stand-in in C++, and the GPU.
#[test]
fn the_stand_in_gives_these_bits_too() {
    // Where this was carried to there are no sources to build.
    if machine::fake_library().is_none() || build::compiler().is_none() {
        return;
    }
    for check in [exact::nt, exact::nn, exact::tn, exact::attention] {
        let queue = StandIn::new(0);
        check(&queue, Extent::Small);
        let (wrong, _) = queue.end();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn all_of_it_runs_to_its_end_on_the_fake_driver() {
    support::runs_on_the_fake();
}
