//! Each kernel's share of a step: `share PERCENT MILLISECONDS LAUNCHES KERNEL`, of one step, largest first.

use crate::started::Started;
use dtrain_cuda::driver::KernelTime;
use std::time::Instant;

/// Steps that are not timed, and steps that are.
const WARM_UP: u64 = 3;
const STEPS: u64 = 4;

/// What the kernels of a step take on a device that times them, and how long the steps took with the marks between the kernels.
pub fn timed(started: &mut Started) -> (Vec<KernelTime>, f64) {
    let take = |started: &Started| {
        started.replica.device().stream().take_times().unwrap_or_else(|error| panic!("{error}"))
    };
    started.begin();
    (1..=WARM_UP).for_each(|number| started.step(number));
    take(started);
    let begun = Instant::now();
    (1..=STEPS).for_each(|number| started.step(WARM_UP + number));
    started.finish();
    let seconds = begun.elapsed().as_secs_f64();
    (take(started), seconds / STEPS as f64)
}

/// Prints the `most` largest ones, behind a line with the sum: a step of `seconds` is one of those that were measured.
pub fn print(times: &[KernelTime], most: usize, seconds: f64) {
    let milliseconds = |one: &KernelTime| one.time.as_secs_f64() * 1e3 / STEPS as f64;
    let all: f64 = times.iter().map(milliseconds).sum();
    let launches: u64 = times.iter().map(|one| one.launches).sum();
    println!(
        "shares: {} launches of {} kernels take {all:.3} ms of a step of {:.3} ms",
        launches / STEPS,
        times.len(),
        seconds * 1e3
    );
    for one in times.iter().take(most) {
        let (percent, launches) = (one.share * 100.0, one.launches as f64 / STEPS as f64);
        println!("share {percent:.1} {:.3} {launches} {}", milliseconds(one), one.kernel);
    }
}
