//! GFLOP/s of products and convolutions at the shapes that the benchmark workloads have, one thread.
//!
//! Times are CPU seconds of this thread, so that other work on the machine does not count (its use of the caches does).
//!
//! `cargo run --release -p dtrain-engine --example kernel_speed [filter]`

use dtrain_engine::cpu::{Cpu, CpuOptions, CpuPrecision, Isa};
use dtrain_engine::device::{
    Activation, Attended, AttentionShape, Conv3dShape, Device, Gelu, Mask, NormGradients, NormInputs,
    Operands, Product, RowNorm, Rows, Strides, Write,
};

/// CPU seconds of this thread so far.
fn now() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The median of several short runs, in seconds per call.
fn seconds(mut call: impl FnMut()) -> f64 {
    call();
    let start = now();
    call();
    let calls = (0.01 / (now() - start).max(1e-6)).ceil() as usize;
    let mut runs = [0.0f64; 9];
    for run in &mut runs {
        let start = now();
        (0..calls).for_each(|_| call());
        *run = (now() - start) / calls as f64;
    }
    runs.sort_by(f64::total_cmp);
    runs[4]
}

fn products(cpu: &Cpu, wanted: &dyn Fn(&str) -> bool) {
    let (rows, turned) = (Strides::rows, Strides::transposed);
    for (name, m, n, k, a, b) in [
        ("mlp forward 1", 128, 1024, 784, rows(784), turned(784)),
        ("mlp forward 2", 128, 1024, 1024, rows(1024), turned(1024)),
        ("mlp forward 3", 128, 10, 1024, rows(1024), turned(1024)),
        ("mlp weights 1", 1024, 784, 128, turned(1024), rows(784)),
        ("mlp weights 2", 1024, 1024, 128, turned(1024), rows(1024)),
        ("mlp weights 3", 10, 1024, 128, turned(10), rows(1024)),
        ("mlp inputs 2", 128, 1024, 1024, rows(1024), rows(1024)),
        ("mlp inputs 3", 128, 1024, 10, rows(10), rows(1024)),
        ("gpt qkv", 1024, 768, 256, rows(256), turned(256)),
        ("gpt projection", 1024, 256, 256, rows(256), turned(256)),
        ("gpt up", 1024, 1024, 256, rows(256), turned(256)),
        ("gpt down", 1024, 256, 1024, rows(1024), turned(1024)),
        ("gpt qkv inputs", 1024, 256, 768, rows(768), rows(256)),
        ("gpt up inputs", 1024, 256, 1024, rows(1024), rows(256)),
        ("gpt down inputs", 1024, 1024, 256, rows(256), rows(1024)),
        ("gpt qkv weights", 768, 256, 1024, turned(768), rows(256)),
        ("gpt up weights", 1024, 256, 1024, turned(1024), rows(256)),
        ("gpt down weights", 256, 1024, 1024, turned(256), rows(1024)),
        ("cnn fc", 128, 128, 9216, rows(9216), turned(9216)),
        ("cnn fc weights", 128, 9216, 128, turned(128), rows(9216)),
        ("cnn fc inputs", 128, 9216, 128, rows(128), rows(9216)),
        ("digits 64", 16, 64, 64, rows(64), turned(64)),
        ("square 1024", 1024, 1024, 1024, rows(1024), rows(1024)),
    ] {
        if !wanted(name) {
            continue;
        }
        let (x, y) = (vec![0.5; m * k], vec![0.25; k * n]);
        let mut c = vec![0.0; m * n];
        let shape = Product { m, n, k, a, b, c_row: n, write: Write::Set };
        report(name, 2.0 * (m * n * k) as f64, seconds(|| cpu.product(&shape, &x, &y, &mut c)));
    }
}

fn convolutions(cpu: &Cpu, wanted: &dyn Fn(&str) -> bool) {
    let flat = |images, channels, side, outputs, padding| {
        let (size, padding) = ([1, side, side], [0, padding, padding]);
        Conv3dShape { images, channels, size, outputs, kernel: [1, 3, 3], stride: [1; 3], padding }
    };
    let deep = |channels, outputs, stride| {
        let (size, kernel) = ([8, 32, 32], [3; 3]);
        Conv3dShape { images: 16, channels, size, outputs, kernel, stride: [stride; 3], padding: [1; 3] }
    };
    for (name, shape) in [
        ("cnn 1", flat(128, 1, 28, 32, 0)),
        ("cnn 2", flat(128, 32, 26, 64, 0)),
        ("digits 1", flat(128, 1, 8, 32, 1)),
        ("digits 2", flat(128, 32, 4, 64, 1)),
        ("digits", flat(128, 16, 8, 32, 1)),
        ("cnn3d 1", deep(1, 16, 1)),
        ("cnn3d 2", deep(16, 32, 2)),
    ] {
        if !wanted(name) {
            continue;
        }
        let volume = |sides: [usize; 3]| sides.iter().product::<usize>();
        let terms = shape.channels * volume(shape.kernel);
        let x = vec![0.5; shape.images * shape.channels * volume(shape.size)];
        let w = vec![0.5; shape.outputs * terms];
        let mut y = vec![0.5; shape.images * shape.outputs * volume(shape.output_size())];
        let (mut dx, mut dw) = (x.clone(), w.clone());
        let mut scratch = vec![0.0; cpu.conv_scratch(&shape).expect("the CPU has them")];
        let flops = 2.0 * (y.len() * terms) as f64;
        let forward = seconds(|| {
            cpu.conv(&shape, Operands { x: &x, w: &w, bias: None }, Activation::Relu, &mut y, &mut scratch)
        });
        report(&format!("{name} forward"), flops, forward);
        let inputs = seconds(|| cpu.conv_input_gradient(&shape, &w, &y, &mut dx, &mut scratch));
        report(&format!("{name} inputs"), flops, inputs);
        let weights = seconds(|| cpu.conv_weight_gradient(&shape, &x, &y, &mut dw, None, &mut scratch));
        report(&format!("{name} weights"), flops, weights);
    }
}

fn others(cpu: &Cpu) {
    let shape = AttentionShape { batch: 8, time: 128, heads: 8, head: 32, mask: Mask::Causal };
    let (qkv, mut y, mut dqkv) = (vec![0.1; 3 << 18], vec![0.1; 1 << 18], vec![0.1; 3 << 18]);
    let mut saved = vec![0.0; cpu.attention_saved(&shape)];
    let flops = 2.0 * 64.0 * 128.0 * 128.0 * 32.0;
    report("attention", flops, seconds(|| cpu.attention(&shape, &qkv, &mut y, &mut saved, &mut [])));
    let d = y.clone();
    let gradient = seconds(|| {
        cpu.attention_gradient(
            &shape,
            Attended { qkv: &qkv, y: &y, saved: &saved, dy: &d },
            &mut dqkv,
            &mut [],
        )
    });
    report("attention gradient", 2.5 * flops, gradient);
    let (x, mut z) = (vec![0.3; 1 << 20], vec![0.3; 1 << 20]);
    let million = (1 << 20) as f64;
    report("gelu (an element)", million, seconds(|| cpu.gelu(Gelu::Exact, &x, &mut z)));
    report("gelu gradient (an element)", million, seconds(|| cpu.gelu_gradient(Gelu::Exact, &x, &mut z)));
    let rows = Rows { rows: 1024, width: 1024 };
    let mut sums = vec![0.0; 1024];
    report("column sums (an element)", million, seconds(|| cpu.column_sums(rows, &x, &mut sums)));
    let rows = Rows { rows: 1024, width: 256 };
    let (gain, mut saved) = (vec![1.0; 256], vec![0.0; 2048]);
    let (x, z) = (&x[..1 << 18], &mut z[..1 << 18]);
    let quarter = million / 4.0;
    let norm = RowNorm::layer(rows, 1e-5);
    report(
        "layer norm (an element)",
        quarter,
        seconds(|| cpu.layer_norm(norm, x, &gain, Some(&gain), z, &mut saved)),
    );
    let (mut dgain, mut scratch) = (vec![0.0; 256], vec![0.0; cpu.layer_norm_scratch(rows)]);
    let mut dbias = dgain.clone();
    let call = || {
        cpu.layer_norm_gradient(
            norm,
            NormInputs { x, gain: &gain, saved: &saved, dy: x },
            NormGradients { dx: Some(z), dgain: &mut dgain, dbias: Some(&mut dbias) },
            &mut scratch,
        );
    };
    report("layer norm gradient (an element)", quarter, seconds(call));
    report("max pool (an output)", 128.0 * 64.0 * 144.0, {
        let pool = dtrain_engine::device::Pool2d {
            planes: 8192,
            size: [24, 24],
            window: [2, 2],
            stride: [2, 2],
            padding: [0; 2],
        };
        let (x, mut y) = (vec![0.5; 8192 * 576], vec![0.5; 8192 * 144]);
        let mut places = y.clone();
        seconds(|| cpu.max_pool(&pool, &x, &mut y, &mut places))
    });
}

fn report(name: &str, flops: f64, seconds: f64) {
    println!("{name:34} {:8.1} us {:7.2} G/s", seconds * 1e6, flops / seconds / 1e9);
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let isa = std::env::var("ISA").map_or(Isa::best(), |isa| Isa::parse(&isa).expect("ISA"));
    let precision = if std::env::var("PRECISION").is_ok_and(|precision| precision == "bf16") {
        CpuPrecision::Bf16
    } else {
        CpuPrecision::F32
    };
    let cpu = Cpu::new(CpuOptions { isa, threads: 1 }).expect("the CPU").with_precision(precision);
    let wanted = |name: &str| name.contains(&filter);
    products(&cpu, &wanted);
    convolutions(&cpu, &wanted);
    if filter.is_empty() {
        others(&cpu);
        report("fingerprint", 0.0, seconds(|| drop(dtrain_engine::fingerprint::fingerprint(&cpu))));
    }
}
