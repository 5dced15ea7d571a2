//! One result, bit for bit, on every instruction set, for every number of threads, alone or stacked.

mod kernels_support;

use dtrain_engine::cpu::{Cpu, CpuOptions, Isa};
use dtrain_engine::device::*;
use dtrain_engine::fingerprint::fingerprint;
use dtrain_types::{Merger, Wire, to_bf16};
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

/// Leaves one by one, each a product or a column sum of its own, merged as the reduction tree has it; of several each, and
/// each sum, is rounded.
fn by_leaves(
    cpu: &Cpu,
    k: usize,
    Leaf { terms: leaf, wire }: Leaf,
    len: usize,
    one: impl Fn(usize, usize, &mut [f32]),
) -> Vec<f32> {
    let mut buffers = vec![poison(len); Merger::buffers(k.div_ceil(leaf) as u32)];
    let mut merger = Merger::default();
    let round = |x: &mut [f32]| {
        if wire == Wire::Bf16 && leaf < k {
            x.iter_mut().for_each(|x| *x = to_bf16(*x));
        }
    };
    let add = |buffers: &mut [Vec<f32>], left: usize, right: usize| {
        let (before, from) = buffers.split_at_mut(right);
        cpu.add_to(&from[0], &mut before[left]);
        round(&mut before[left]);
    };
    for from in (0..k).step_by(leaf) {
        let buffer = &mut buffers[merger.next_buffer()];
        one(from, leaf.min(k - from), buffer);
        round(buffer);
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
        let cuts = [(2, 1), (5, 2), (40, 8), (37, 5), (96, 16), (300, 100), (1100, 512), (1600, 520), (9, 9)];
        for ((k, leaf), wire) in
            cuts.into_iter().flat_map(|cut| [Wire::F32, Wire::Bf16].map(|wire| (cut, wire)))
        {
            let leaf = Leaf { terms: leaf, wire };
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
                        "{m}x{n}x{k} in {leaf:?}, layout {layout}, {isa} with {threads} threads"
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
                assert!(bits(&sums) == bits(&wanted), "{k} rows of {n} in {leaf:?}, {}", cpu.isa());
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
    other.kernel_revision += 1;
    assert!(!one.agrees_with(&other));
    let mut other = one.clone();
    other.self_test.0[31] ^= 1;
    assert!(!one.agrees_with(&other));
}

/// Output and gradients of a convolution.
fn convolved(cpu: &Cpu, shape: &Conv3dShape) -> [Vec<u32>; 4] {
    let volume = |sides: [usize; 3]| sides.iter().product::<usize>();
    let x = numbers(1, shape.images * shape.channels * volume(shape.size));
    let w = numbers(2, shape.outputs * shape.channels * volume(shape.kernel));
    let dy = numbers(3, shape.images * shape.outputs * volume(shape.output_size()));
    let mut scratch = poison(cpu.conv_scratch(shape).expect("the CPU has them"));
    let (mut y, mut dx) = (poison(dy.len()), poison(x.len()));
    let (mut dw, mut db) = (poison(w.len()), poison(shape.outputs));
    cpu.conv(shape, Operands { x: &x, w: &w, bias: None }, Activation::Relu, &mut y, &mut scratch);
    cpu.conv_input_gradient(shape, &w, &dy, &mut dx, &mut scratch);
    cpu.conv_weight_gradient(shape, &x, &dy, &mut dw, Some(&mut db), &mut scratch);
    [bits(&y), bits(&dx), bits(&dw), bits(&db)]
}

/// Outputs of operations at sizes where threads share the work, one list a device.
fn large_outputs(cpu: &Cpu) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    let (images, channels, outputs) = (12, 5, 40);
    let (kernel, padding) = ([1, 3, 3], [0, 1, 1]);
    let conv = Conv3dShape { images, channels, size: [1, 26, 26], outputs, kernel, stride: [1; 3], padding };
    all.extend(convolved(cpu, &conv));
    let conv =
        Conv3dShape { images: 77, channels: 60, size: [1, 5, 5], outputs, kernel, stride: [1; 3], padding };
    all.extend(convolved(cpu, &conv));
    // Phases, sums of more than a block, and images of three dimensions and of one.
    let (kernel, padding) = ([3; 3], [1; 3]);
    let conv = Conv3dShape {
        images: 6,
        channels: 20,
        size: [5, 9, 13],
        outputs: 24,
        kernel,
        stride: [2; 3],
        padding,
    };
    all.extend(convolved(cpu, &conv));
    let (kernel, stride) = ([1, 1, 5], [1, 1, 3]);
    let conv = Conv3dShape {
        images: 20,
        channels: 30,
        size: [1, 1, 800],
        outputs: 17,
        kernel,
        stride,
        padding: [0, 0, 2],
    };
    all.extend(convolved(cpu, &conv));
    // In tiles: parts of an image, and several images at once of which one is left.
    for (images, size) in [(3, [1, 35, 52]), (79, [1, 4, 6])] {
        let (channels, outputs, kernel, padding) = (48, 64, [1, 3, 3], [0, 1, 1]);
        let conv = Conv3dShape { images, channels, size, outputs, kernel, stride: [1; 3], padding };
        all.extend(convolved(cpu, &conv));
    }

    let attention = AttentionShape { batch: 3, time: 100, heads: 4, head: 16, mask: Mask::Causal };
    let (qkv, dy) = (numbers(4, 3 * 3 * 100 * 64), numbers(5, 3 * 100 * 64));
    let (mut y, mut saved) = (poison(dy.len()), poison(cpu.attention_saved(&attention)));
    cpu.attention(&attention, &qkv, &mut y, &mut saved, &mut []);
    let mut d = poison(qkv.len());
    cpu.attention_gradient(
        &attention,
        Attended { qkv: &qkv, y: &y, saved: &saved, dy: &dy },
        &mut d,
        &mut [],
    );
    all.extend([bits(&y), bits(&saved), bits(&d)]);

    let attention = AttentionShape { batch: 2, time: 77, mask: Mask::None, ..attention };
    let (qkv, dy) = (numbers(4, 3 * 2 * 77 * 64), numbers(5, 2 * 77 * 64));
    let (mut y, mut saved) = (poison(dy.len()), poison(cpu.attention_saved(&attention)));
    cpu.attention(&attention, &qkv, &mut y, &mut saved, &mut []);
    let mut d = poison(qkv.len());
    let inputs = Attended { qkv: &qkv[..], y: &y[..], saved: &saved[..], dy: &dy[..] };
    cpu.attention_gradient(&attention, inputs, &mut d, &mut []);
    all.extend([bits(&y), bits(&saved), bits(&d)]);

    let turned = Matrices { matrices: 9, rows: 37, columns: 300 };
    let (x, mut y) = (numbers(6, 9 * 37 * 300), poison(9 * 37 * 300));
    cpu.transpose(turned, &x, &mut y);
    all.push(bits(&y));
    for cell in [Cell::Lstm, Cell::Gru] {
        let (rows, time, hidden) = (33, 3, 45);
        let out = rows * time * hidden;
        let mut gates: Vec<f32> = numbers(7, GATES * out).iter().map(|x| x * 4.0).collect();
        let mut states = numbers(8, if cell == Cell::Lstm { out } else { 0 });
        let (mut y, mut dy) = (numbers(9, out), numbers(10, out));
        let bias = numbers(11, cell.gates() * hidden);
        let (mut dstates, mut dgates) = (numbers(12, rows * hidden), vec![0.0; GATES * out]);
        for at in 0..time {
            let step = CellStep { cell, rows, time, at, hidden };
            cpu.recurrent_cells(&step, [&bias, &bias], &mut gates, &mut states, &mut y);
        }
        for at in (0..time).rev() {
            let step = CellStep { cell, rows, time, at, hidden };
            let kept = CellsKept { gates: &gates[..], states: &states, y: &y[..] };
            let gradients = CellGradients { dy: &mut dy[..], dstates: &mut dstates[..], dgates: &mut dgates };
            cpu.recurrent_gradient(&step, kept, gradients);
        }
        all.extend([&gates, &states, &y, &dy, &dstates, &dgates].map(|out| bits(out)));
    }

    let shape = Rows { rows: 2700, width: 100 };
    let (x, dy, gain) = (numbers(6, 270_000), numbers(7, 270_000), numbers(8, 100));
    let (mut y, mut saved) = (poison(270_000), poison(5400));
    let norm = RowNorm::layer(shape, 1e-5);
    cpu.layer_norm(norm, &x, &gain, Some(&gain), &mut y, &mut saved);
    let (mut dx, mut sums, mut dgain, mut dbias) = (poison(270_000), poison(100), poison(100), poison(100));
    let mut scratch = poison(cpu.layer_norm_scratch(shape));
    let d = Some(&mut dx[..]);
    cpu.layer_norm_gradient(
        norm,
        NormInputs { x: &x, gain: &gain, saved: &saved, dy: &dy },
        NormGradients { dx: d, dgain: &mut dgain, dbias: Some(&mut dbias) },
        &mut scratch,
    );
    cpu.column_sums(shape, &x, &mut sums);
    all.extend([&y, &dx, &dgain, &dbias, &sums].map(|out| bits(out)));

    cpu.gelu(Gelu::Exact, &x, &mut y);
    cpu.gelu_gradient(Gelu::Exact, &y, &mut dx);
    all.extend([bits(&y), bits(&dx)]);
    all.push(vec![cpu.sum_of_squares(&x, 0.1).to_bits() as u32]);
    all
}

#[test]
fn images_have_the_same_bits_in_any_batch() {
    // Small ones, of which some are laid side by side, and ones that are cut into tiles.
    for (channels, outputs) in [(6, 7), (32, 48)] {
        let (size, kernel, padding) = ([1, 4, 4], [1, 3, 3], [0, 1, 1]);
        let shape = Conv3dShape { images: 40, channels, size, outputs, kernel, stride: [1; 3], padding };
        let (x, w) = (numbers(1, 40 * channels * 16), numbers(2, outputs * channels * 9));
        for cpu in devices() {
            let passes = |images: usize, x: &[f32]| {
                let shape = Conv3dShape { images, ..shape };
                let mut scratch = poison(cpu.conv_scratch(&shape).expect("the CPU has them"));
                let (mut y, mut dx) = (poison(images * outputs * 16), poison(x.len()));
                cpu.conv(&shape, Operands { x, w: &w, bias: None }, Activation::None, &mut y, &mut scratch);
                cpu.conv_input_gradient(&shape, &w, &y, &mut dx, &mut scratch);
                [bits(&y), bits(&dx)]
            };
            let alone = x.chunks(channels * 16).map(|image| passes(1, image));
            let [mut y, mut dx] = [vec![], vec![]];
            alone.for_each(|[y_alone, dx_alone]| {
                y.extend(y_alone);
                dx.extend(dx_alone);
            });
            assert!(passes(40, &x) == [y, dx], "{} with {} threads", cpu.isa(), cpu.threads());
        }
    }
}

/// The element `y` of a convolution by the definition: channels and places of the kernel in order, in blocks of 512.
#[test]
fn a_sum_of_a_convolution_is_that_of_its_definition() {
    let shape = Conv3dShape {
        images: 1,
        channels: 23,
        size: [3, 4, 5],
        outputs: 3,
        kernel: [3; 3],
        stride: [2, 1, 2],
        padding: [1; 3],
    };
    let (x, w) = (numbers(1, 23 * 60), numbers(2, 3 * 23 * 27));
    let [depth, height, width] = shape.output_size();
    for device in devices() {
        let mut y = poison(3 * depth * height * width);
        let mut scratch = poison(device.conv_scratch(&shape).expect("the CPU has them"));
        device.conv(&shape, Operands { x: &x, w: &w, bias: None }, Activation::None, &mut y, &mut scratch);
        for (i, y) in y.iter().enumerate() {
            let (output, cell) = (i / (depth * height * width), i % (depth * height * width));
            let to = [cell / (height * width), cell / width % height, cell % width];
            let wanted = by_definition(23 * 27, |term| {
                let tap = [term / 9 % 3, term / 3 % 3, term % 3];
                let at = [0, 1, 2].map(|d| (to[d] * shape.stride[d] + tap[d]).wrapping_sub(1));
                let inside = (0..3).all(|d| at[d] < shape.size[d]);
                let x = if inside { x[((term / 27 * 3 + at[0]) * 4 + at[1]) * 5 + at[2]] } else { 0.0 };
                (w[output * 23 * 27 + term], x)
            });
            assert_eq!(
                y.to_bits(),
                wanted.to_bits(),
                "{i} on {} with {} threads",
                device.isa(),
                device.threads()
            );
        }
    }
}

/// Gradients of inputs skip taps that meet nothing; what they sum is still blocks of the whole kernel.
#[test]
fn an_input_gradient_with_stride_is_that_of_its_definition() {
    let shape = Conv3dShape {
        images: 1,
        channels: 2,
        size: [3, 5, 6],
        outputs: 41,
        kernel: [3, 3, 3],
        stride: [2, 2, 3],
        padding: [1, 0, 1],
    };
    let out = shape.output_size();
    let len = out.iter().product::<usize>();
    let (w, dy) = (numbers(1, 41 * 2 * 27), numbers(2, 41 * len));
    for device in devices() {
        let mut dx = poison(2 * 90);
        let mut scratch = poison(device.conv_scratch(&shape).expect("the CPU has them"));
        device.conv_input_gradient(&shape, &w, &dy, &mut dx, &mut scratch);
        for (i, dx) in dx.iter().enumerate() {
            let (channel, from) = (i / 90, [i % 90 / 30, i / 6 % 5, i % 6]);
            let wanted = by_definition(41 * 27, |term| {
                let (output, place) = (term / 27, 26 - term % 27);
                let tap = [place / 9, place / 3 % 3, place % 3];
                // Where the window starts that meets this element through this tap.
                let start = [0, 1, 2].map(|d| (from[d] + shape.padding[d]).wrapping_sub(tap[d]));
                let met = (0..3).all(|d| {
                    start[d] < 1 << 60
                        && start[d] % shape.stride[d] == 0
                        && start[d] / shape.stride[d] < out[d]
                });
                let to = [0, 1, 2].map(|d| start[d] / shape.stride[d]);
                let dy = if met { dy[output * len + (to[0] * out[1] + to[1]) * out[2] + to[2]] } else { 0.0 };
                (w[(output * 2 + channel) * 27 + place], dy)
            });
            assert_eq!(
                dx.to_bits(),
                wanted.to_bits(),
                "{i} on {} with {} threads",
                device.isa(),
                device.threads()
            );
        }
    }
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
