//! Batches on their way to a GPU, as far as that is the host's work: a GPU on paper takes no time. `cargo bench -p dtrain-cuda`.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dtrain_cuda::driver::{About, Gpu};
use dtrain_cuda::{CudaDevice, Precision};
use dtrain_engine::OwnMemory;
use dtrain_engine::cpu::Pool;

/// 16 384 images of 28 x 28, of the MLP that fills a GPU.
const BATCH: usize = 16_384 * 784;

fn batches(c: &mut Criterion) {
    let gpu = Gpu::on_paper(About {
        ordinal: 0,
        name: "a GPU on paper".into(),
        capability: [9, 0],
        multiprocessors: 132,
        memory: 1 << 40,
    });
    let batch: Vec<f32> = (0..BATCH).map(|i| i as f32 / BATCH as f32).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut group = c.benchmark_group("batches");
    group.throughput(Throughput::Bytes(size_of_val(&*batch) as u64));
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        for threads in [1, 2, 4, 8].into_iter().filter(|threads| *threads <= cores) {
            let device = CudaDevice::new(&gpu, precision).expect("it is on paper");
            let device = device.with_threads(Pool::new(threads).expect("threads"));
            let mut there = device.floats(BATCH).expect("it is on paper");
            group.bench_function(BenchmarkId::new(precision.name(), threads), |bench| {
                bench.iter(|| device.send_activations_ahead(&batch, &mut there).expect("it is on paper"));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, batches);
criterion_main!(benches);
