//! One result, bit for bit, on every instruction set, for every number of threads, alone or stacked.

mod kernels_support;

use dtrain_engine::cpu::{Cpu, CpuOptions, Isa};
use dtrain_engine::device::*;
use dtrain_engine::fingerprint::fingerprint;
use dtrain_types::Merger;
use kernels_support::*;

/// The four layouts of a product: `A` and `B` each as they are or transposed.
fn layouts(m: usize, n: usize, k: usize) -> [(Strides, Strides); 4] {
    let (a, b) = ([Strides::rows(k), Strides::transposed(m)], [Strides::rows(n), Strides::transposed(k)]);
    [(a[0], b[0]), (a[0], b[1]), (a[1], b[0]), (a[1], b[1])]
}

fn product(cpu: &Cpu, [m, n, k]: [usize; 3], (a, b): (Strides, Strides), x: &[f32], y: &[f32]) -> Vec<f32> {
    let mut c = poison(m * n);
    cpu.product(&Product { m, n, k, a, b, c_row: n, write: Write::Set }, x, y, &mut c);
    c
}

/// The element `(r, c)` of every layout, from the definition: blocks of 512 from zero, each by fused multiply-add.
fn by_definition(k: usize, term: impl Fn(usize) -> (f32, f32)) -> f32 {
    let mut total = 0.0;
    for start in (0..k).step_by(512) {
        let mut block = 0.0f32;
        for i in start..(start + 512).min(k) {
            let (a, b) = term(i);
            block = a.mul_add(b, block);
        }
        total = if start == 0 { block } else { total + block };
    }
    total
}

const SIZES: [usize; 10] = [1, 2, 10, 16, 32, 63, 64, 65, 128, 200];

/// The matrix of products for one K: operands of the largest size are laid out once for each layout and size; a row or
/// column of a smaller product is a row or column of the largest, so its bits must be found there.
fn products_agree(k: usize) {
    let most = SIZES[SIZES.len() - 1];
    let (a, b) = (numbers(1, most * k), numbers(2, most * k));
    let reference = cpu();
    // Stacked as high as it gets: 200 rows and columns, from row-major A and B^T.
    let whole = product(&reference, [most, most, k], layouts(most, most, k)[1], &a, &b);
    for (r, c) in [(0, 0), (199, 199), (64, 130), (13, 32)] {
        let wanted = by_definition(k, |i| (a[r * k + i], b[c * k + i]));
        assert_eq!(
            whole[r * most + c].to_bits(),
            wanted.to_bits(),
            "({r}, {c}) of K {k} against the definition"
        );
    }
    let devices: Vec<Cpu> = [Isa::Avx2, Isa::Avx512]
        .into_iter()
        .filter(|isa| isa.is_here())
        .flat_map(|isa| (1..=8).map(move |threads| Cpu::new(CpuOptions { isa, threads }).unwrap()))
        .collect();
    let turn =
        |x: &[f32], rows: usize| -> Vec<f32> { (0..rows * k).map(|i| x[i % rows * k + i / rows]).collect() };
    let turned: Vec<[Vec<f32>; 2]> = SIZES.iter().map(|&size| [turn(&a, size), turn(&b, size)]).collect();
    let mut next = 0;
    for (i, &m) in SIZES.iter().enumerate() {
        for (j, &n) in SIZES.iter().enumerate() {
            let wanted: Vec<u32> = (0..m * n).map(|i| whole[i / n * most + i % n].to_bits()).collect();
            for (layout, strides) in layouts(m, n, k).into_iter().enumerate() {
                let x = if layout < 2 { &a[..] } else { &turned[i][0] };
                let y = if layout % 2 == 1 { &b[..] } else { &turned[j][1] };
                // Every device has its turn at small K; at the largest, where one product takes long, a few.
                let turns = if k > 2000 { 2 } else { devices.len() };
                for _ in 0..turns {
                    let cpu = &devices[next % devices.len()];
                    next += 1;
                    let c = product(cpu, [m, n, k], strides, x, y);
                    assert!(
                        bits(&c) == wanted,
                        "{m}x{n}x{k}, layout {layout}, {} with {} threads",
                        cpu.isa(),
                        cpu.threads()
                    );
                }
            }
        }
    }
}

#[test]
fn products_of_511_terms_have_one_result() {
    products_agree(511);
}

#[test]
fn products_of_512_terms_have_one_result() {
    products_agree(512);
}

#[test]
fn products_of_513_terms_have_one_result() {
    products_agree(513);
}

#[test]
fn products_of_1000_terms_have_one_result() {
    products_agree(1000);
}

#[test]
fn products_of_9216_terms_have_one_result() {
    products_agree(9216);
}

/// Leaves one by one, each a product or a column sum of its own, merged as the reduction tree has it.
fn by_leaves(
    cpu: &Cpu,
    k: usize,
    leaf: usize,
    len: usize,
    one: impl Fn(usize, usize, &mut [f32]),
) -> Vec<f32> {
    let mut buffers = vec![poison(len); Merger::buffers(k.div_ceil(leaf) as u32)];
    let mut merger = Merger::default();
    let add = |buffers: &mut [Vec<f32>], left: usize, right: usize| {
        let (before, from) = buffers.split_at_mut(right);
        cpu.add_to(&from[0], &mut before[left]);
    };
    for from in (0..k).step_by(leaf) {
        one(from, leaf.min(k - from), &mut buffers[merger.next_buffer()]);
        merger.push(|left, right| add(&mut buffers, left, right));
    }
    merger.finish(|left, right| add(&mut buffers, left, right));
    buffers.swap_remove(0)
}

#[test]
fn sums_over_leaves_are_those_of_leaves_merged_one_by_one() {
    let (reference, devices) = (cpu(), devices());
    let mut next = 0;
    for [m, n] in [[1, 1], [1, 40], [33, 1], [7, 300], [65, 10], [130, 70], [14, 33]] {
        for (k, leaf) in
            [(2, 1), (5, 2), (40, 8), (37, 5), (96, 16), (300, 100), (1100, 512), (1600, 520), (9, 9)]
        {
            let (x, y) = (numbers(1, m * k), numbers(2, n * k));
            for (layout, (a, b)) in layouts(m, n, k).into_iter().enumerate() {
                let wanted = by_leaves(&reference, k, leaf, m * n, |from, k, c| {
                    let shape = Product { m, n, k, a, b, c_row: n, write: Write::Set };
                    reference.product(&shape, &x[from * a.col..], &y[from * b.row..], c);
                });
                for _ in 0..3 {
                    let cpu = &devices[next % devices.len()];
                    next += 1;
                    let mut c = poison(m * n);
                    let shape = Product { m, n, k, a, b, c_row: n, write: Write::Set };
                    cpu.product_of_leaves(&shape, leaf, &x, &y, &mut c);
                    let (isa, threads) = (cpu.isa(), cpu.threads());
                    assert!(
                        bits(&c) == bits(&wanted),
                        "{m}x{n}x{k} in leaves of {leaf}, layout {layout}, {isa} with {threads} threads"
                    );
                }
            }
            let (rows, width) = (k, n);
            let wanted = by_leaves(&reference, k, leaf, n, |from, rows, sums| {
                reference.column_sums(Rows { rows, width }, &y[from * n..(from + rows) * n], sums);
            });
            for cpu in &devices {
                let mut sums = poison(n);
                cpu.column_sums_of_leaves(Rows { rows, width }, leaf, &y, &mut sums);
                assert!(bits(&sums) == bits(&wanted), "{k} rows of {n} in leaves of {leaf}, {}", cpu.isa());
            }
        }
    }
}

#[test]
fn the_scalar_product_has_the_same_result() {
    let scalar = |threads| Cpu::new(CpuOptions { isa: Isa::Scalar, threads }).unwrap();
    let (one, three, best) = (scalar(1), scalar(3), cpu());
    for [m, n, k] in
        [[1, 1, 511], [10, 65, 513], [65, 10, 512], [63, 64, 1000], [2, 16, 9216], [130, 130, 70]]
    {
        let (x, y) = (numbers(1, m * k), numbers(2, n * k));
        for strides in layouts(m, n, k) {
            let wanted = bits(&product(&best, [m, n, k], strides, &x, &y));
            for cpu in [&one, &three] {
                assert_eq!(
                    bits(&product(cpu, [m, n, k], strides, &x, &y)),
                    wanted,
                    "{m}x{n}x{k} {strides:?}"
                );
            }
        }
    }
}

#[test]
fn every_device_has_the_same_fingerprint() {
    let wanted = fingerprint(&cpu());
    for device in devices() {
        let found = fingerprint(&device);
        assert!(found.agrees_with(&wanted), "{} with {} threads", device.isa(), device.threads());
        assert_eq!(found.isa, device.isa().to_string());
    }
}

#[test]
fn a_fingerprint_of_other_kernels_does_not_agree() {
    let one = fingerprint(&cpu());
    let mut other = one.clone();
    other.kernels += 1;
    assert!(!one.agrees_with(&other));
    let mut other = one.clone();
    other.self_test[31] ^= 1;
    assert!(!one.agrees_with(&other));
}

/// Outputs of operations at sizes where threads share the work, one list a device.
fn large_outputs(cpu: &Cpu) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    let conv = Conv2d {
        images: 12,
        channels: 5,
        size: [26, 26],
        outputs: 40,
        kernel: [3, 3],
        stride: [1, 1],
        padding: [1, 1],
    };
    let (x, w, dy) = (numbers(1, 12 * 5 * 676), numbers(2, 40 * 45), numbers(3, 12 * 40 * 676));
    let mut scratch = poison(cpu.conv2d_scratch(&conv));
    let mut out = poison(dy.len());
    cpu.conv2d(&conv, &x, &w, None, Activation::Relu, &mut out, &mut scratch);
    all.push(bits(&out));
    let mut out = poison(x.len());
    cpu.conv2d_input_gradient(&conv, &w, &dy, &mut out, &mut scratch);
    all.push(bits(&out));
    let (mut out, mut db) = (poison(w.len()), poison(40));
    cpu.conv2d_weight_gradient(&conv, &x, &dy, &mut out, Some(&mut db), &mut scratch);
    all.extend([bits(&out), bits(&db)]);

    let attention = Attention { batch: 3, time: 100, heads: 4, head: 16 };
    let (qkv, dy) = (numbers(4, 3 * 3 * 100 * 64), numbers(5, 3 * 100 * 64));
    let (mut y, mut saved) = (poison(dy.len()), poison(cpu.attention_saved(&attention)));
    cpu.attention(&attention, &qkv, &mut y, &mut saved, &mut []);
    let mut d = poison(qkv.len());
    cpu.attention_gradient(&attention, &qkv, &y, &saved, &dy, &mut d, &mut []);
    all.extend([bits(&y), bits(&saved), bits(&d)]);

    let shape = Rows { rows: 2700, width: 100 };
    let (x, dy, gain) = (numbers(6, 270_000), numbers(7, 270_000), numbers(8, 100));
    let (mut y, mut saved) = (poison(270_000), poison(5400));
    cpu.layer_norm(shape, &x, &gain, &gain, &mut y, &mut saved);
    let (mut dx, mut sums, mut dgain, mut dbias) = (poison(270_000), poison(100), poison(100), poison(100));
    let mut scratch = poison(cpu.layer_norm_scratch(shape));
    let d = Some(&mut dx[..]);
    cpu.layer_norm_gradient(shape, &x, &gain, &saved, &dy, d, &mut dgain, &mut dbias, &mut scratch);
    cpu.column_sums(shape, &x, &mut sums);
    all.extend([&y, &dx, &dgain, &dbias, &sums].map(|out| bits(out)));

    cpu.gelu(&x, &mut y);
    cpu.gelu_gradient(&y, &mut dx);
    all.extend([bits(&y), bits(&dx)]);
    all.push(vec![cpu.sum_of_squares(&x, 0.1).to_bits() as u32]);
    all
}

#[test]
fn large_operations_have_one_result() {
    let wanted = large_outputs(&cpu());
    for device in devices().iter().filter(|device| device.isa() != Isa::Scalar || device.threads() < 3) {
        for (i, (found, wanted)) in large_outputs(device).iter().zip(&wanted).enumerate() {
            assert!(found == wanted, "output {i} on {} with {} threads", device.isa(), device.threads());
        }
    }
}
