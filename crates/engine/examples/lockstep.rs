//! What a machine lets ranks have that wait for one another after every step: threads that only multiply, in step and on their own.
//!
//! Each thread does the same products, as many as take about as long as a step of a compared workload. In step, all wait until the last
//! one has done its share; on their own, nobody waits. There is nothing to communicate, so what is lost in step is lost to cores
//! that are not equally fast at every moment: no trainer whose ranks end their steps together can keep it.
//!
//! ```text
//! cargo run --release -p dtrain-engine --example lockstep -- 2 15 5     # threads, milliseconds a step, pairs
//! ```
//!
//! Prints `lockstep RATIO LEAST MOST`: steps/s in step over steps/s on their own, the median of the pairs and their spread.

use dtrain_engine::cpu::{Cpu, CpuOptions};
use dtrain_engine::device::{Device, Product, Strides, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How long a pair measures each way, at least, and how many steps. *Units*: seconds, steps.
const MEASURED: f64 = 0.5;
const STEPS: f64 = 10.0;

/// Seconds since some moment.
fn now() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// One thread's products: the second layer of the compared MLP.
struct UpdateShare {
    cpu: Cpu,
    x: Vec<f32>,
    w: Vec<f32>,
    y: Vec<f32>,
}

impl UpdateShare {
    fn new() -> Self {
        let cpu = Cpu::new(CpuOptions::default()).unwrap_or_else(|error| panic!("{error}"));
        Self { cpu, x: vec![0.5; 128 * 1024], w: vec![0.25; 1024 * 1024], y: vec![0.0; 128 * 1024] }
    }

    fn products(&mut self, count: u32) {
        let (a, b) = (Strides::rows(1024), Strides::transposed(1024));
        let shape = Product { m: 128, n: 1024, k: 1024, a, b, c_row: 1024, write: Write::Set };
        (0..count).for_each(|_| self.cpu.product(&shape, &self.x, &self.w, &mut self.y));
    }
}

/// Where threads meet: whoever comes waits for the others.
#[derive(Default)]
struct Meeting {
    come: AtomicU64,
    over: AtomicBool,
}

impl Meeting {
    /// *Blocks* until as many have come as there are threads, for the round of this number, from 1. Whether there is another one.
    fn wait(&self, threads: u64, round: u64) -> bool {
        self.come.fetch_add(1, Ordering::AcqRel);
        while self.come.load(Ordering::Acquire) < threads * round {
            if self.over.load(Ordering::Acquire) {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }
}

/// Whether the threads wait for each other.
#[derive(Clone, Copy, PartialEq)]
enum Pace {
    /// After every step.
    InStep,
    /// Never.
    Alone,
}

/// Steps a second of all threads, added up.
fn rate(shares: &mut [UpdateShare], products: u32, time: f64, pace: Pace) -> f64 {
    let (meeting, threads) = (Meeting::default(), shares.len() as u64);
    let measure = |share: &mut UpdateShare| {
        let (begun, mut steps) = (now(), 0u64);
        while now() - begun < time {
            share.products(products);
            steps += 1;
            if pace == Pace::InStep && !meeting.wait(threads, steps) {
                break;
            }
        }
        // Nobody waits for one that has stopped.
        meeting.over.store(true, Ordering::Release);
        steps as f64 / (now() - begun)
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = shares.iter_mut().map(|share| scope.spawn(|| measure(share))).collect();
        all.into_iter().map(|thread| thread.join().expect("it only multiplies")).sum()
    })
}

fn main() -> ExitCode {
    let numbers: Option<Vec<u32>> =
        std::env::args().skip(1).map(|word| word.parse().ok().filter(|number| *number > 0)).collect();
    let Some([threads, milliseconds, pairs]) = numbers.and_then(|numbers| <[u32; 3]>::try_from(numbers).ok())
    else {
        eprintln!(
            "error: three numbers are needed\nhint: lockstep THREADS MILLISECONDS PAIRS, such as 2 15 5"
        );
        return ExitCode::from(2);
    };
    let mut shares: Vec<UpdateShare> = (0..threads).map(|_| UpdateShare::new()).collect();
    let begun = now();
    shares[0].products(20);
    let products = (f64::from(milliseconds) * 0.02 / (now() - begun)).ceil() as u32;
    let time = MEASURED.max(f64::from(milliseconds) / 1000.0 * STEPS);
    let mut ratios: Vec<f64> = (0..pairs)
        .map(|_| {
            let [together, apart] =
                [Pace::InStep, Pace::Alone].map(|pace| rate(&mut shares, products, time, pace));
            together / apart
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!("lockstep {:.2} {:.2} {:.2}", ratios[ratios.len() / 2], ratios[0], ratios[ratios.len() - 1]);
    ExitCode::SUCCESS
}
