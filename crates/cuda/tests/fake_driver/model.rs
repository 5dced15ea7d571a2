//! A whole model trained through the driver: what stages, losses and updates come to, and what it costs in calls.

use crate::rig::assert_near;
use crate::stand_in::cpu;
use crate::support::{Fake, device, device_in};
use crate::training::train;
use dtrain_cuda::Precision;

#[test]
fn a_model_learns_on_a_gpu_what_it_learns_on_the_cpu() {
    let Some(gpu) = device() else { return };
    let (wanted, got) = (train(&cpu(), |_| ()), train(&gpu, |_| ()));
    assert_near("the parameters", &got.1, &wanted.1);
    for (got, wanted) in got.0.iter().zip(&wanted.0) {
        assert!((got - wanted).abs() <= 1e-5 * wanted, "losses {got} and {wanted}");
    }
    assert_eq!(got, train(&gpu, |_| ()), "the same run has other bits");
    assert_eq!(Fake::new().wrong(), "");
}

#[test]
fn lazy_streams_change_nothing() {
    let fake = Fake::new();
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let Some(wanted) = device_in(precision).map(|gpu| train(&gpu, |_| ())) else { return };
        let lazy = fake.lazy();
        let gpu = device_in(precision).expect("as above");
        drop(lazy);
        assert_eq!(train(&gpu, |_| ()), wanted, "{precision:?}");
    }
    assert_eq!(fake.wrong(), "");
}

/// What the child of the next test does: alone in its process, because calls are counted.
#[test]
fn count_memory_calls() {
    if crate::support::is_child()
        && let Some(gpu) = device()
    {
        let (fake, mut counts) = (Fake::new(), Vec::new());
        train(&gpu, |_| counts.push(fake.memory_calls()));
        println!("\ncounted {counts:?}");
        assert!(counts[0] > 10, "nothing was counted: {counts:?}");
        assert!(counts.iter().all(|count| *count == counts[0]), "a step allocates: {counts:?}");
        drop(gpu);
    }
}

#[test]
fn no_memory_is_asked_for_after_the_first_pass() {
    if device().is_some() {
        let said = crate::support::child("model::count_memory_calls", &[]);
        assert!(said.contains("counted ["), "{said}");
    }
}
