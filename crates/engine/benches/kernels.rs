//! Kernels at the shapes of the benchmark workloads, one thread: `cargo bench -p dtrain-engine`.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dtrain_engine::cpu::{Cpu, CpuOptions};
use dtrain_engine::device::{
    Activation, Attended, AttentionShape, Conv3dShape, Device, Gelu, Mask, Operands, Product, Strides, Write,
};
use std::hint::black_box;

fn products(c: &mut Criterion) {
    let cpu = Cpu::new(CpuOptions::default()).expect("the CPU");
    let mut group = c.benchmark_group("product");
    let (rows, turned) = (Strides::rows, Strides::transposed);
    for (name, m, n, k, a, b) in [
        ("mlp forward", 128, 1024, 1024, rows(1024), turned(1024)),
        ("mlp weights", 1024, 1024, 128, turned(1024), rows(1024)),
        ("mlp inputs", 128, 1024, 1024, rows(1024), rows(1024)),
        ("gpt up", 1024, 1024, 256, rows(256), turned(256)),
        ("gpt up weights", 1024, 256, 1024, turned(1024), rows(256)),
        ("cnn fc", 128, 128, 9216, rows(9216), turned(9216)),
        ("digits", 16, 64, 64, rows(64), turned(64)),
    ] {
        let (x, y, mut out) = (vec![0.5; m * k], vec![0.25; k * n], vec![0.0; m * n]);
        let shape = Product { m, n, k, a, b, c_row: n, write: Write::Set };
        group.throughput(Throughput::Elements(2 * (m * n * k) as u64));
        group.bench_function(name, |bench| bench.iter(|| cpu.product(&shape, &x, &y, black_box(&mut out))));
    }
}

fn convolutions(c: &mut Criterion) {
    let cpu = Cpu::new(CpuOptions::default()).expect("the CPU");
    let mut group = c.benchmark_group("convolution");
    let shape = Conv3dShape {
        images: 32,
        channels: 32,
        size: [1, 26, 26],
        outputs: 64,
        kernel: [1, 3, 3],
        stride: [1; 3],
        padding: [0; 3],
    };
    let (x, w) = (vec![0.5; 32 * 32 * 676], vec![0.5; 64 * 288]);
    let (mut y, mut dx, mut dw) = (vec![0.5; 32 * 64 * 576], x.clone(), w.clone());
    let mut scratch = vec![0.0; cpu.conv_scratch(&shape).expect("the CPU has them")];
    group.throughput(Throughput::Elements(2 * 32 * 64 * 576 * 288));
    group.bench_function("forward", |bench| {
        bench.iter(|| {
            cpu.conv(
                &shape,
                Operands { x: &x, w: &w, bias: None },
                Activation::Relu,
                black_box(&mut y),
                &mut scratch,
            )
        });
    });
    group.bench_function("inputs", |bench| {
        bench.iter(|| cpu.conv_input_gradient(&shape, &w, &y, black_box(&mut dx), &mut scratch));
    });
    group.bench_function("weights", |bench| {
        bench.iter(|| cpu.conv_weight_gradient(&shape, &x, &y, black_box(&mut dw), None, &mut scratch));
    });
}

fn others(c: &mut Criterion) {
    let cpu = Cpu::new(CpuOptions::default()).expect("the CPU");
    let shape = AttentionShape { batch: 8, time: 128, heads: 8, head: 32, mask: Mask::Causal };
    let (qkv, mut y, mut dqkv) = (vec![0.1; 3 << 18], vec![0.1; 1 << 18], vec![0.1; 3 << 18]);
    let mut saved = vec![0.0; cpu.attention_saved(&shape)];
    c.bench_function("attention", |bench| {
        bench.iter(|| cpu.attention(&shape, &qkv, black_box(&mut y), &mut saved, &mut []));
    });
    let dy = y.clone();
    c.bench_function("attention gradient", |bench| {
        bench.iter(|| {
            cpu.attention_gradient(
                &shape,
                Attended { qkv: &qkv, y: &y, saved: &saved, dy: &dy },
                black_box(&mut dqkv),
                &mut [],
            )
        });
    });
    let (x, mut z) = (vec![0.3; 1 << 20], vec![0.3; 1 << 20]);
    c.bench_function("gelu of 2^20", |bench| bench.iter(|| cpu.gelu(Gelu::Exact, &x, black_box(&mut z))));
    c.bench_function("fingerprint", |bench| bench.iter(|| dtrain_engine::fingerprint::fingerprint(&cpu)));
}

/// The smallest operation that is cut in two, on two threads and on one: the fork pays if the first is quicker.
fn fork(c: &mut Criterion) {
    let mut sums = vec![0.0; 128];
    let shape = dtrain_engine::device::Rows { rows: 2048, width: 128 };
    let x = vec![1.0; 2048 * 128];
    for threads in [1, 2] {
        let cpu = Cpu::new(CpuOptions { threads, ..CpuOptions::default() }).expect("the CPU");
        c.bench_function(&format!("column sums on {threads} threads"), |bench| {
            bench.iter(|| cpu.column_sums(shape, &x, black_box(&mut sums)));
        });
    }
}

criterion_group!(benches, products, convolutions, others, fork);
criterion_main!(benches);
