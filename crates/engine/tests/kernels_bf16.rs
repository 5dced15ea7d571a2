//! Products whose operands are rounded to bf16: their definition, and one result on every instruction set, AMX among them.

mod kernels_support;

use dtrain_engine::cpu::{Cpu, CpuOptions, CpuPrecision, Isa};
use dtrain_engine::device::*;
use dtrain_engine::fingerprint::fingerprint;
use dtrain_types::{Merger, Wire, to_bf16};
use kernels_support::*;

/// Terms of a step.
const STEP: usize = 32;

/// Every instruction set that is here, on so many threads each, in bf16. Says which are not.
fn devices_in_bf16(threads: &[usize]) -> Vec<Cpu> {
    if !Isa::Amx.is_here() {
        eprintln!("skipped: this CPU has no AMX");
    }
    let here = Isa::ALL.into_iter().filter(|isa| isa.is_here());
    let all = here.flat_map(|isa| threads.iter().map(move |&threads| CpuOptions { isa, threads }));
    all.map(|options| Cpu::new(options).unwrap().with_precision(CpuPrecision::Bf16)).collect()
}

/// Zero, with its sign, in place of what is below the least normal number.
fn flushed(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(x) } else { x }
}

/// `a b + sum` as a processor rounds it that takes tiny results for zero: as if exponents had no end, and then it looks.
fn fused(a: f32, b: f32, sum: f32) -> f32 {
    let exact = f64::from(a) * f64::from(b) + f64::from(sum);
    if exact.abs() > 2f64.powi(-100) {
        return a.mul_add(b, sum);
    }
    // So small, it is exact in f64.
    let scale = 2f64.powi(100);
    let rounded = (exact * scale) as f32;
    let is_tiny = f64::from(rounded.abs()) < f64::from(f32::MIN_POSITIVE) * scale;
    if is_tiny { 0.0f32.copysign(rounded) } else { (f64::from(rounded) / scale) as f32 }
}

/// An element from its definition, from what is there or from zero.
fn by_definition(from: f32, k: usize, term: impl Fn(usize) -> (f32, f32)) -> f32 {
    let mut total = flushed(from);
    for step in (0..k).step_by(STEP) {
        let mut halves = [0.0f32; 2];
        for i in step..step + STEP {
            let (a, b) = if i < k { term(i) } else { (0.0, 0.0) };
            let half = &mut halves[i % 2];
            *half = fused(to_bf16(flushed(a)), to_bf16(flushed(b)), *half);
        }
        total = flushed(total + flushed(halves[0] + halves[1]));
    }
    total
}

/// `A` and `B` of a size, each as it is and turned.
struct Operands {
    sizes: [usize; 3],
    a: [Vec<f32>; 2],
    b: [Vec<f32>; 2],
}

impl Operands {
    fn new(sizes: [usize; 3], number: impl Fn(u32, usize) -> Vec<f32>) -> Self {
        let [m, n, k] = sizes;
        let turned = |x: &[f32], rows: usize, columns: usize| {
            (0..columns * rows).map(|i| x[i % rows * columns + i / rows]).collect()
        };
        let (a, b) = (number(1, m * k), number(2, k * n));
        Self { sizes, a: [a.clone(), turned(&a, m, k)], b: [b.clone(), turned(&b, k, n)] }
    }

    fn product(&self, cpu: &Cpu, layout: usize, write: Write, c: &mut [f32]) {
        let [m, n, k] = self.sizes;
        let a = if layout < 2 { Strides::rows(k) } else { Strides::transposed(m) };
        let b = if layout.is_multiple_of(2) { Strides::rows(n) } else { Strides::transposed(k) };
        let shape = Product { m, n, k, a, b, c_row: c.len() / m, write };
        cpu.product(&shape, &self.a[layout / 2], &self.b[layout % 2], c);
    }

    fn wanted(&self, c: &[f32], write: Write) -> Vec<f32> {
        let [m, n, k] = self.sizes;
        let element = |i: usize| {
            let from = if write == Write::Add { c[i] } else { 0.0 };
            by_definition(from, k, |t| (self.a[0][i / n * k + t], self.b[0][t * n + i % n]))
        };
        (0..m * n).map(element).collect()
    }
}

#[test]
fn products_of_every_size_and_layout_are_what_their_definition_says() {
    let devices = devices_in_bf16(&[1, 3]);
    for sizes in [
        [1, 1, 1],
        [3, 5, 7],
        [16, 16, 32],
        [17, 33, 31],
        [32, 32, 64],
        [33, 48, 100],
        [70, 20, 513],
        [5, 130, 1100],
        [130, 5, 2100],
        [48, 1100, 40],
        [64, 1030, 530],
    ] {
        let operands = Operands::new(sizes, numbers);
        let c = numbers(3, sizes[0] * sizes[1]);
        let wanted = [Write::Set, Write::Add].map(|write| (write, operands.wanted(&c, write)));
        for (cpu, layout) in devices.iter().flat_map(|cpu| (0..4).map(move |layout| (cpu, layout))) {
            for (write, wanted) in &wanted {
                let mut out = if *write == Write::Add { c.clone() } else { poison(c.len()) };
                operands.product(cpu, layout, *write, &mut out);
                let (isa, threads) = (cpu.isa(), cpu.threads());
                assert!(
                    bits(&out) == bits(wanted),
                    "{sizes:?}, layout {layout}, {write:?}, {isa}, {threads} threads"
                );
            }
        }
    }
}

/// Numbers whose products are around the least normal one, with some that are not normal, zeros of both signs, and cancellation.
fn tiny(site: u32, len: usize) -> Vec<f32> {
    let (words, signs) = (ids(site, len, 1 << 16), numbers(site + 10, len));
    let number = |(word, sign): (&u32, &f32)| {
        // Exponents from -70 to -56: their products are from 2^-140 to 2^-110.
        let exponent = 127 - 70 + word % 15;
        let mantissa = word >> 4 & 0x7f;
        let size = match word % 41 {
            0 => 0,
            1 => mantissa << 16,
            _ => exponent << 23 | mantissa << 16,
        };
        f32::from_bits(size).copysign(*sign)
    };
    words.iter().zip(&signs).map(number).collect()
}

#[test]
fn what_is_below_the_least_normal_number_is_zero_everywhere_alike() {
    let (sizes, devices) = ([96, 96, 64], devices_in_bf16(&[1]));
    let operands = Operands::new(sizes, tiny);
    let c: Vec<f32> = tiny(3, sizes[0] * sizes[1]).iter().map(|x| x * 2f32.powi(-64)).collect();
    for write in [Write::Set, Write::Add] {
        let wanted = operands.wanted(&c, write);
        let zeros = wanted.iter().filter(|x| **x == 0.0).count();
        assert!(zeros > 0 && zeros < wanted.len() / 2, "{zeros} zeros");
        for cpu in &devices {
            let mut out = c.clone();
            operands.product(cpu, 0, write, &mut out);
            assert!(bits(&out) == bits(&wanted), "{write:?} on {}", cpu.isa());
        }
    }
}

#[test]
fn a_sum_just_below_the_least_normal_number_is_zero_though_f32_would_round_it_up() {
    // 2^-126 and less than half a step of f32's numbers that are not normal off it, which is more than half a step of those that are.
    let (least, off) = (2f32.powi(-63), 2f32.powi(-76) * 1.5);
    let (a, b) = ([least, 0.0, -off, 0.0], [least, 0.0, 2f32.powi(-75), 0.0]);
    assert_eq!(a[2].mul_add(b[2], least * least), f32::MIN_POSITIVE, "plain f32 rounds it up");
    let shape =
        Product { m: 1, n: 1, k: 4, a: Strides::rows(4), b: Strides::rows(1), c_row: 1, write: Write::Set };
    for cpu in devices_in_bf16(&[1]) {
        let mut c = poison(1);
        cpu.product(&shape, &a, &b, &mut c);
        assert_eq!(c[0].to_bits(), 0, "{}: {}", cpu.isa(), c[0]);
    }
}

#[test]
fn operands_are_rounded_to_nearest_and_what_is_not_finite_stays_so() {
    let shape =
        Product { m: 1, n: 1, k: 2, a: Strides::rows(2), b: Strides::rows(1), c_row: 1, write: Write::Set };
    for cpu in devices_in_bf16(&[1]) {
        let of = |a: [f32; 2], b: [f32; 2]| {
            let mut c = poison(1);
            cpu.product(&shape, &a, &b, &mut c);
            c[0]
        };
        assert_eq!(of([1.003_906_3, 0.0], [1.0, 0.0]), 1.0, "a tie goes to the even one");
        assert_eq!(of([1.011_718_8, 0.0], [1.0, 0.0]), 1.015625, "as above, upwards");
        let nearly = f32::from_bits(f32::MIN_POSITIVE.to_bits() - 1);
        assert_eq!(of([nearly, 0.0], [1.0, 0.0]), 0.0, "what is not normal is zero before it is rounded");
        assert_eq!(of([f32::MAX, 0.0], [1.0, 0.0]), f32::INFINITY);
        assert_eq!(of([f32::INFINITY, 1.0], [-2.0, 1.0]), f32::NEG_INFINITY);
        assert!(of([f32::NAN, 1.0], [1.0, 1.0]).is_nan());
        assert!(of([f32::INFINITY, 1.0], [0.0, 1.0]).is_nan());
    }
}

#[test]
fn rows_of_a_result_that_lie_apart_leave_what_is_between_them() {
    for cpu in devices_in_bf16(&[1, 2]) {
        for sizes in [[16, 32, 8], [33, 20, 40]] {
            let [m, n, _] = sizes;
            let operands = Operands::new(sizes, numbers);
            let wanted = operands.wanted(&[], Write::Set);
            let mut c = vec![7.0; m * (n + 5)];
            operands.product(&cpu, 1, Write::Set, &mut c);
            for (row, wanted) in c.chunks(n + 5).zip(wanted.chunks(n)) {
                assert!(bits(&row[..n]) == bits(wanted) && row[n..] == [7.0; 5], "{sizes:?}, {}", cpu.isa());
            }
        }
    }
}

#[test]
fn sums_over_leaves_are_those_of_leaves_merged_one_by_one() {
    let devices = devices_in_bf16(&[1, 3]);
    for ([m, n], (k, leaf)) in [
        ([1, 1], (2, 1)),
        ([7, 40], (40, 8)),
        ([33, 20], (37, 5)),
        ([65, 70], (96, 32)),
        ([130, 33], (300, 100)),
        ([20, 300], (1600, 520)),
        ([16, 16], (9, 9)),
    ] {
        let (x, y) = (numbers(1, m * k), numbers(2, n * k));
        for (wire, layout) in [Wire::F32, Wire::Bf16].into_iter().flat_map(|wire| [(wire, 0), (wire, 3)]) {
            let (a, b) = match layout {
                0 => (Strides::rows(k), Strides::rows(n)),
                _ => (Strides::transposed(m), Strides::transposed(k)),
            };
            let shape = |k| Product { m, n, k, a, b, c_row: n, write: Write::Set };
            let leaf = Leaf { terms: leaf, wire };
            let (mut merger, mut sums) = (Merger::default(), vec![vec![0.0; m * n]; 12]);
            let is_one = leaf.terms >= k;
            let add = |sums: &mut Vec<Vec<f32>>, left: usize, right: usize| {
                let from = sums[right].clone();
                sums[left].iter_mut().zip(from).for_each(|(sum, x)| *sum += x);
                wire.round(&mut sums[left]);
            };
            for from in (0..k).step_by(leaf.terms) {
                let c = &mut sums[merger.next_buffer()];
                devices[0].product(
                    &shape(leaf.terms.min(k - from)),
                    &x[from * a.col..],
                    &y[from * b.row..],
                    c,
                );
                if !is_one {
                    wire.round(c);
                }
                merger.push(|l, r| add(&mut sums, l, r));
            }
            merger.finish(|l, r| add(&mut sums, l, r));
            for cpu in &devices {
                let mut c = poison(m * n);
                cpu.product_of_leaves(&shape(k), leaf, &x, &y, &mut c);
                assert!(
                    bits(&c) == bits(&sums[0]),
                    "{m}x{n}x{k} in {leaf:?}, layout {layout}, {}",
                    cpu.isa()
                );
            }
        }
    }
}

/// What attention makes of the same numbers: outputs, and gradients.
fn attended(cpu: &Cpu, shape: &AttentionShape) -> [Vec<f32>; 2] {
    let (outputs, width) = (shape.batch * shape.time, shape.heads * shape.head);
    let (qkv, dy) = (numbers(1, outputs * 3 * width), numbers(2, outputs * width));
    let (mut y, mut saved) = (poison(outputs * width), poison(shape.batch * shape.heads * shape.time));
    let mut scratch = poison(cpu.attention_scratch(shape));
    cpu.attention(shape, &qkv, &mut y, &mut saved, &mut scratch);
    let mut dqkv = poison(qkv.len());
    cpu.attention_gradient(
        shape,
        Attended { qkv: &qkv, y: &y, saved: &saved, dy: &dy },
        &mut dqkv,
        &mut scratch,
    );
    [y, dqkv]
}

#[test]
fn attention_has_one_result_near_that_of_f32() {
    for mask in [Mask::Causal, Mask::None] {
        for (time, head) in [(1, 4), (33, 16), (64, 64), (130, 24)] {
            let shape = AttentionShape { batch: 2, heads: 3, head, time, mask };
            let plain = attended(&cpu(), &shape);
            let all: Vec<_> = devices_in_bf16(&[1, 3]).iter().map(|cpu| attended(cpu, &shape)).collect();
            for (found, plain) in all[0].iter().zip(&plain) {
                let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
                let off = norm(&mut found.iter().zip(plain).map(|(a, b)| f64::from(*a) - f64::from(*b)));
                let size = norm(&mut plain.iter().map(|x| f64::from(*x)));
                assert!(off < 0.01 * size && found != plain, "{shape:?}: off by {}", off / size);
            }
            assert!(
                all.iter().all(|found| [0, 1].iter().all(|&i| bits(&found[i]) == bits(&all[0][i]))),
                "{shape:?}"
            );
        }
    }
}

#[test]
fn a_device_in_bf16_is_another_than_one_in_f32_and_every_instruction_set_is_the_same() {
    let devices = devices_in_bf16(&[1, 2]);
    let wanted = fingerprint(&devices[0]);
    assert!(!fingerprint(&cpu()).agrees_with(&wanted));
    assert!(devices.iter().all(|cpu| fingerprint(cpu).agrees_with(&wanted)));
}
