//! Steps of a compared workload on a GPU, for some seconds: `rate WORK PRECISION dtrain NUMBER UNIT batch BATCH`.
//!
//! ```text
//! DTRAIN_NVRTC=/usr/local/cuda/lib64/libnvrtc.so.13 cargo run --release -p dtrain-cuda --example train_step -- \
//!     --work gpt --precision f32 --seconds 2
//! ```
//!
//! A step is one pass forward and backward and one update by the replica that training uses, as in a run of one rank: the
//! gradient stays on the GPU, and the next batch comes from the host meanwhile. Model, start and batch are PyTorch's
//! (bench/peers/models.py), whose batch lies on the GPU. In bf16 and f16 operands are rounded on their
//! way to the tensor cores, all that is kept is f32; in f16 the loss is scaled. What dtrain cannot do yet it calls `skipped: not yet: WHY`,
//! what there is no room for `lost WORK PRECISION dtrain no room: WHY`.
//!
//! `--library 1` has cuBLASLt and cuDNN, which `DTRAIN_CUBLASLT` and `DTRAIN_CUDNN` name, do the products and convolutions that they are
//! faster at; those are chosen first, and listed.
//! `--batch N` takes another batch; of GPT-2 it is the largest of 64, 32, 16 and 8 that there is room for, of
//! ViT-B/16 (`vit`) that of 256, 128, 64 and 32, SmolLM2 135M (`llama`) that of 32, 16, 8 and 4. `--shares N` lists the kernels
//! that take most of a step. `--turns N` says `ready UNIT batch BATCH` and measures a window, `window NUMBER`, whenever a line of standard
//! input asks for one: whoever asks others in between (`bench/gpu_turns.py`) compares them on one GPU at one time.
//! `--curve FILE --steps N` trains GPT-2 on a text and prints its losses instead.

#[path = "../../tests/on_gpu/machine.rs"]
mod machine;

mod asked;
mod curve;
mod libraries;
mod shares;
mod started;

use asked::Asked;
use dtrain_cuda::libraries::Libraries;
use dtrain_cuda::{CudaDevice, Precision};
use dtrain_engine::cpu::Pool;
use dtrain_engine::models::GptOptions;
use dtrain_engine::{EngineError, Replica};
use libraries::chosen;
use machine::Machine;
use started::Started;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Steps that are not counted: memory, caches and clocks settle.
const WARM_UP: u64 = 10;

/// The least number of steps of a window, unless it is to be as short as can be.
const LEAST: u64 = 10;

/// Begins, and makes the steps that are not counted.
fn warm(started: &mut Started) -> u64 {
    started.begin();
    (1..=WARM_UP).for_each(|number| started.step(number));
    started.finish();
    WARM_UP
}

/// Steps a second of a window behind `done` steps, and how many have been done then.
fn window(started: &mut Started, done: u64, time: Duration) -> (f64, u64) {
    let least = if time.is_zero() { 1 } else { LEAST };
    let (begun, mut steps) = (Instant::now(), 0);
    while begun.elapsed() < time || steps < least {
        steps += 1;
        started.step(done + steps);
    }
    // As in PyTorch's loop, nobody waits for a step but the last one.
    started.finish();
    (steps as f64 / begun.elapsed().as_secs_f64(), done + steps)
}

/// Steps a second.
fn rate(started: &mut Started, time: Duration) -> f64 {
    let done = warm(started);
    window(started, done, time).0
}

/// A window whenever somebody asks for one. *Blocks* for the next line of standard input, until there is none or all are measured.
fn in_turns(started: &mut Started, asked: &Asked) {
    let (mut done, each) = (warm(started), started.of_a_step() as f64);
    println!("ready {} batch {}", started.unit, started.data.batch().rows);
    for _asked in std::io::stdin().lines().map_while(Result::ok).take(asked.turns) {
        let (steps, so_far) = window(started, done, asked.time);
        done = so_far;
        println!("window {:.1}", steps * each);
    }
}

/// What the tensor cores of a GPU do with dense halves, by its name. *Units*: operations a second. *Source*: data sheets.
fn peak(name: &str) -> Option<f64> {
    let known = [("H100", 989e12), ("H200", 989e12), ("A100", 312e12), ("B200", 2250e12)];
    known.into_iter().find(|(part, _)| name.contains(part)).map(|(_, peak)| peak)
}

/// Operations of a model for each token, forwards and backwards: six for each parameter, and those of attention over the whole
/// context, as is usual (half of it is behind the mask).
fn operations_of_a_token(parameters: usize, options: &GptOptions) -> f64 {
    (6 * parameters + 12 * options.layers * options.width * options.context) as f64
}

/// Model FLOP utilisation, where halves are multiplied and the GPU is known.
fn utilisation(started: &Started, asked: &Asked, rate: f64) -> Option<String> {
    let name = started.replica.device().gpu().context().about().name.clone();
    let peak = peak(&name).filter(|_| asked.work == "gpt2" && asked.precision.ends_with("f16"))?;
    let needed = rate * operations_of_a_token(started.replica.about().layout.parameters, &asked.gpt2);
    let share = 100.0 * needed / peak;
    Some(format!("model FLOP utilisation {share:.1} % of {:.0} TFLOP/s of {name}", peak / 1e12))
}

/// Those that bring the GPU its batches, as many as in `dtrain train` on this machine.
fn feeders() -> Pool {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Pool::new(cores.min(CudaDevice::MOST_THREADS)).unwrap_or_else(|error| panic!("{error}"))
}

/// Prints the rate, and what else is asked for.
fn measure(asked: &Asked, precision: Precision, machine: &Machine) -> Result<(), EngineError> {
    let gpu = machine.gpu(0);
    let libraries = if asked.library { chosen(asked, precision, &gpu)? } else { Libraries::default() };
    let with = |device: CudaDevice| Ok(device.with_libraries(&libraries)?.with_threads(feeders()));
    let mut started = Started::new(asked, precision, || with(CudaDevice::new(&gpu, precision)?))?;
    if asked.turns > 0 {
        in_turns(&mut started, asked);
        return Ok(());
    }
    let (rows, unit, each) = (started.data.batch().rows, started.unit, started.of_a_step() as f64);
    let steps = rate(&mut started, asked.time);
    if let Some(words) = utilisation(&started, asked, steps * each) {
        println!("{words}");
    }
    println!("rate {} {} dtrain {:.1} {unit} batch {rows}", asked.work, asked.precision, steps * each);
    // What comes now has the GPU for itself.
    drop(started);
    let same = Asked { batch: Some(rows), ..asked.clone() };
    if asked.shares > 0 {
        let mut started = Started::new(&same, precision, || with(CudaDevice::timing(&gpu, precision)?))?;
        let (times, with_marks) = shares::timed(&mut started);
        shares::print(&times, asked.shares, 1.0 / steps);
        eprintln!("with every kernel timed a step takes {:.3} ms", with_marks * 1e3);
    } else if asked.peer().is_some() {
        // What graphs are good for, where kernels are short; for people who look into the log.
        let mut started = Started::new(&same, precision, || with(CudaDevice::one_by_one(&gpu, precision)?))?;
        let slower = rate(&mut started, asked.time / 2) * each;
        eprintln!("with every kernel launched by itself: {slower:.1} {unit}");
    }
    Ok(())
}

/// The losses of GPT-2 on a text.
fn curve_of(asked: &Asked, precision: Precision, machine: &Machine, file: &Path) -> Result<(), EngineError> {
    let gpu = machine.gpu(0);
    let libraries = if asked.library { chosen(asked, precision, &gpu)? } else { Libraries::default() };
    curve::print(asked, precision, machine::device_on(&gpu, precision).with_libraries(&libraries)?, file)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = match Asked::new(&arguments) {
        Ok(asked) => asked,
        Err(what) => {
            eprintln!("error: {what}");
            return ExitCode::from(2);
        }
    };
    let precision = match asked.precision() {
        Ok(precision) => precision,
        Err(what) => {
            println!("skipped: not yet: {what}");
            return ExitCode::SUCCESS;
        }
    };
    let Some(machine) = Machine::open() else { return ExitCode::SUCCESS };
    let done = match &asked.curve {
        None => measure(&asked, precision, &machine),
        Some(file) => curve_of(&asked, precision, &machine, file),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(EngineError::NoRoom(why)) => {
            let why = why.lines().next().unwrap_or_default();
            let batch = asked.batch.map_or(String::new(), |batch| format!("batch {batch}: "));
            println!("lost {} {} dtrain no room: {batch}{why}", asked.work, asked.precision);
            ExitCode::FAILURE
        }
        Err(error) => panic!("{error}"),
    }
}
