//! What the example `nccl_modes` measures, on the fake library over the fake driver: both orders find their sums, in any world.

use crate::stand_in::build::compiler;
use crate::support::{Fake, child, gpu, is_child, library_path};
use dtrain_nccl::open;
use std::time::Duration;

#[path = "../on_gpu/modes.rs"]
mod run;

/// What the child of the next test does: alone in its process, because the fake library reads a variable once.
#[test]
fn reduce_in_both_orders() {
    if is_child()
        && let Some(gpu) = gpu()
    {
        let library = open(&[library_path().with_file_name("libfake_nccl.so")]);
        let library = library.expect("cargo builds it beside this test");
        for (world, bytes) in [(2, 4), (3, 40_000)] {
            let took = run::took(std::slice::from_ref(&gpu), &library, world, bytes, 3);
            assert!(
                took.bytes == bytes && took.exact > Duration::ZERO && took.ring > Duration::ZERO,
                "{took:?}"
            );
            assert!(took.ratio() > 0.0, "{took:?}");
        }
        assert_eq!(Fake::new().wrong(), "");
        println!("\nwell");
    }
}

#[test]
fn exact_and_ring_are_reduced_by_turns() {
    if compiler().is_some() {
        let driver = library_path();
        let driver = driver.to_str().expect("a path of this machine");
        assert!(child("modes::reduce_in_both_orders", &[("FAKE_NCCL_DRIVER", driver)]).contains("well"));
    }
}
