//! What the kernel tests share: numbers, devices, and the measure of an error.

#![allow(dead_code)]

use dtrain_engine::cpu::{Cpu, CpuOptions, Isa};
use dtrain_types::{Key, MicroBatch, Seed, Site, Step};

/// `len` numbers in `[-1, 1)`, another list for each `site`.
pub fn numbers(site: u32, len: usize) -> Vec<f32> {
    let key = Key::new(Seed(1), Step(0), MicroBatch(0), Site(site));
    (0..len as u32).map(|i| key.unit_f32(i) * 2.0 - 1.0).collect()
}

/// `len` ids below `bound`.
pub fn ids(site: u32, len: usize, bound: u32) -> Vec<u32> {
    let key = Key::new(Seed(2), Step(0), MicroBatch(0), Site(site));
    (0..len as u32).map(|i| key.below(i, bound)).collect()
}

/// An output that holds nothing but NaN.
pub fn poison(len: usize) -> Vec<f32> {
    vec![f32::NAN; len]
}

/// The device that every test compares with: the best instruction set, one thread.
pub fn cpu() -> Cpu {
    Cpu::new(CpuOptions::default()).unwrap()
}

/// One device for each instruction set that is here, at several numbers of threads.
pub fn devices() -> Vec<Cpu> {
    // What AMX does not multiply is AVX-512's.
    let here = Isa::ALL.into_iter().filter(|isa| *isa < Isa::Amx && isa.is_here());
    here.flat_map(|isa| [1, 2, 3, 5, 8].map(|threads| Cpu::new(CpuOptions { isa, threads }).unwrap()))
        .collect()
}

/// Asserts `||out - wanted|| <= 1e-5 ||wanted||`, and that no element is NaN.
#[track_caller]
pub fn assert_near(what: &str, out: &[f32], wanted: &[f64]) {
    assert_eq!(out.len(), wanted.len(), "{what}: lengths");
    let (mut error, mut norm) = (0.0f64, 0.0f64);
    for (i, (&out, &wanted)) in out.iter().zip(wanted).enumerate() {
        assert!(out.is_finite(), "{what}: element {i} is {out}");
        error += (f64::from(out) - wanted).powi(2);
        norm += wanted * wanted;
    }
    assert!(error.sqrt() <= 1e-5 * norm.sqrt() + 1e-30, "{what}: off by {:e}", (error / norm).sqrt());
}

/// The bits of a list, so that equality is that of bits.
pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// `x` in f64.
pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| f64::from(v)).collect()
}
