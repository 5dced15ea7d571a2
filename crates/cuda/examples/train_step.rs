//! Steps of a compared workload on a GPU, for some seconds: `rate WORK PRECISION dtrain NUMBER UNIT`.
//!
//! ```text
//! DTRAIN_NVRTC=/usr/local/cuda/lib64/libnvrtc.so.13 cargo run --release -p dtrain-cuda --example train_step -- \
//!     --work gpt --precision f32 --seconds 2
//! ```
//!
//! A step is one pass forward and backward and one update by the replica that training uses, as in a run of one rank: the
//! gradient stays on the GPU. Model, start and batch are PyTorch's (bench/peers/models.py). In bf16 operands are rounded on their way to
//! the tensor cores, all that is kept is f32. What dtrain cannot do yet it calls `skipped: not yet: WHY`.

#[path = "../tests/on_gpu/machine.rs"]
mod machine;

use dtrain_cuda::{CudaDevice, Precision};
use dtrain_engine::models::peer::{PeerData, Work, initialise};
use dtrain_engine::{DeviceReplica, Kept, Replica};
use dtrain_types::{MicroBatch, Seed, Step};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Steps that are not counted: memory, caches and clocks settle.
const WARM_UP: u64 = 10;

/// What is asked for.
struct Asked {
    work: String,
    precision: String,
    time: Duration,
}

fn asked(arguments: &[String]) -> Result<Asked, String> {
    let mut asked = Asked { work: String::new(), precision: "f32".to_owned(), time: Duration::from_secs(2) };
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return Err(format!("{} needs a value", pair[0])) };
        match name.as_str() {
            "--work" => asked.work.clone_from(value),
            "--precision" => asked.precision.clone_from(value),
            "--seconds" => {
                let seconds = value.parse().ok().filter(|seconds: &f64| (0.0..=3600.0).contains(seconds));
                asked.time =
                    Duration::from_secs_f64(seconds.ok_or(format!("{value} is no time in seconds"))?);
            }
            _ => return Err(format!("there is no {name}: --work, --precision, --seconds")),
        }
    }
    let known = |value: &str, of: &[&str]| match of.contains(&value) {
        true => Ok(()),
        false => Err(format!("there is no {value:?}: {}", of.join(", "))),
    };
    known(&asked.work, &["mlp", "gpt", "cnn", "cnn3d", "gpt2"])?;
    known(&asked.precision, &["f32", "tf32", "bf16"])?;
    Ok(asked)
}

/// The workload and its precision, or what is missing for it.
fn planned(asked: &Asked) -> Result<(Work, Precision), String> {
    let work = Work::ALL.into_iter().find(|work| work.name() == asked.work);
    let work = work.ok_or("there is no GPT whose head is tied to its tokens")?;
    if work == Work::Cnn3d {
        return Err("there is no convolution of three dimensions on a GPU".to_owned());
    }
    match asked.precision.as_str() {
        "f32" => Ok((work, Precision::F32)),
        "bf16" => Ok((work, Precision::Bf16)),
        precision => Err(format!("there are no products in {precision}")),
    }
}

/// The workload on a GPU, and its batch.
fn start(work: Work, device: CudaDevice) -> (DeviceReplica<CudaDevice>, PeerData) {
    let model = work.model(&device).expect("the workloads fit");
    let replica = DeviceReplica::new(device, model, work.optimizer(), Seed(7));
    let mut replica = replica.unwrap_or_else(|error| panic!("{error}"));
    let mut state = replica.state().clone();
    initialise(replica.layout(), &mut state);
    replica.swap_state(&mut state).unwrap_or_else(|error| panic!("{error}"));
    (replica, work.data())
}

/// Samples a second.
fn rate(replica: &mut DeviceReplica<CudaDevice>, data: &PeerData, time: Duration) -> f64 {
    let (batch, elements) = (data.batch(), replica.gradient_len());
    assert!(replica.keep(1), "one gradient is always there");
    let mut step = |number: u64| {
        let step = Step(number);
        let gradient = &mut Kept { number: 0, elements };
        let figures = replica.micro_batch(step, MicroBatch(0), &batch, gradient);
        let figures = figures.unwrap_or_else(|error| panic!("{error}"));
        assert!(figures.sums.loss.is_finite(), "the loss of step {number} is {}", figures.sums.loss);
        let info = replica.update_kept(step, figures.sums.weight, figures.samples);
        info.unwrap_or_else(|error| panic!("{error}"));
        // The next pass would wait for the update anyway; the last step has nobody else to wait for it.
        replica.device().finish().unwrap_or_else(|error| panic!("{error}"));
    };
    (1..=WARM_UP).for_each(&mut step);
    let (begun, mut steps) = (Instant::now(), 0);
    loop {
        steps += 1;
        step(WARM_UP + steps);
        let gone = begun.elapsed();
        if gone >= time {
            return (steps * batch.rows as u64) as f64 / gone.as_secs_f64();
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = match asked(&arguments) {
        Ok(asked) => asked,
        Err(what) => {
            eprintln!("error: {what}");
            return ExitCode::from(2);
        }
    };
    let (work, precision) = match planned(&asked) {
        Ok(planned) => planned,
        Err(what) => {
            println!("skipped: not yet: {what}");
            return ExitCode::SUCCESS;
        }
    };
    let Some(machine) = machine::Machine::open() else { return ExitCode::SUCCESS };
    let (mut replica, data) = start(work, machine::device_on(&machine.gpu(0), precision));
    let rate = rate(&mut replica, &data, asked.time);
    println!("rate {} {} dtrain {rate:.1} samples/s", asked.work, asked.precision);
    ExitCode::SUCCESS
}
