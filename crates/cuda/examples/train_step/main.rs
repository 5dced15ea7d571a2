//! Steps of a compared workload on a GPU, for some seconds: `rate WORK PRECISION dtrain NUMBER UNIT`.
//!
//! ```text
//! DTRAIN_NVRTC=/usr/local/cuda/lib64/libnvrtc.so.13 cargo run --release -p dtrain-cuda --example train_step -- \
//!     --work gpt --precision f32 --seconds 2
//! ```
//!
//! A step is one pass forward and backward and one update by the replica that training uses, as in a run of one rank: the
//! gradient stays on the GPU. Model, start and batch are PyTorch's (bench/peers/models.py). In bf16 and f16 operands are rounded on their
//! way to the tensor cores, all that is kept is f32; in f16 the loss is scaled. What dtrain cannot do yet it calls `skipped: not yet: WHY`.

#[path = "../tests/on_gpu/machine.rs"]
mod machine;

use dtrain_cuda::{CudaDevice, Precision, rehearsed};
use dtrain_engine::models::peer::{PeerData, Work, gpt2_data, gpt2_options, initialise};
use dtrain_engine::models::{GptOptions, gpt2};
use dtrain_engine::stage::Shape;
use dtrain_engine::{DeviceReplica, EngineError, Kept, Loss, LossScaling, Model, Replica};
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
    /// GPT-2, or a small one of its kind.
    gpt2: GptOptions,
}

fn asked(arguments: &[String]) -> Result<Asked, String> {
    let mut asked = Asked {
        work: String::new(),
        precision: "f32".to_owned(),
        time: Duration::from_secs(2),
        gpt2: gpt2_options(),
    };
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
            // To try this program on a stand-in for a GPU.
            "--width" => {
                let width = value.parse().ok().filter(|width: &usize| (1..=64).contains(width));
                let width = 12 * width.ok_or(format!("{value} is no twelfth of a small width"))?;
                asked.gpt2 = GptOptions { vocabulary: 128, context: 16, layers: 2, width, ..asked.gpt2 };
            }
            _ => return Err(format!("there is no {name}: --work, --precision, --seconds, --width")),
        }
    }
    let known = |value: &str, of: &[&str]| match of.contains(&value) {
        true => Ok(()),
        false => Err(format!("there is no {value:?}: {}", of.join(", "))),
    };
    known(&asked.work, &["mlp", "gpt", "cnn", "cnn3d", "gpt2"])?;
    known(&asked.precision, &["f32", "tf32", "bf16", "f16"])?;
    Ok(asked)
}

/// The precision, or what is missing for what is asked.
fn planned(asked: &Asked) -> Result<Precision, String> {
    match asked.precision.as_str() {
        "f32" => Ok(Precision::F32),
        "bf16" => Ok(Precision::Bf16),
        "f16" => Ok(Precision::F16),
        precision => Err(format!("there are no products in {precision}")),
    }
}

/// A workload on a GPU, with its batch.
struct Started {
    replica: DeviceReplica<CudaDevice>,
    data: PeerData,
    /// What is counted, and how many of them a row has.
    unit: &'static str,
    each: usize,
}

/// A model whose loss is scaled where it has to be.
fn scaled(model: Model<CudaDevice>, precision: Precision) -> Model<CudaDevice> {
    match precision {
        Precision::F16 => model.scaling_loss(LossScaling::default()),
        Precision::F32 | Precision::Bf16 => model,
    }
}

/// A workload that has a batch of its own.
fn start(work: Work, precision: Precision, device: CudaDevice) -> Result<Started, EngineError> {
    let model = scaled(work.model(&device)?, precision);
    let replica = DeviceReplica::new(device, model, work.optimizer(), Seed(7))?;
    Ok(Started { replica, data: work.data(), unit: "samples/s", each: 1 })
}

/// GPT-2 small, with the largest of PyTorch's batches that there is room for.
fn start_gpt2(
    open: impl Fn() -> CudaDevice,
    precision: Precision,
    options: &GptOptions,
) -> Result<Started, EngineError> {
    let started = |rows| {
        let input = Shape::Tokens { rows, time: options.context };
        let device = open();
        let model = Model::new(&device, gpt2(options)?, input, Loss::cross_entropy())?;
        let model = scaled(model, precision);
        let replica = rehearsed(DeviceReplica::new(device, model, Work::Gpt.optimizer(), Seed(7))?)?;
        let data = gpt2_data(options, rows);
        Ok(Started { replica, data, unit: "tokens/s", each: options.context })
    };
    let mut tried = started(64);
    for rows in [32, 16, 8] {
        if matches!(tried, Err(EngineError::NoRoom(_))) {
            tried = started(rows);
        }
    }
    tried
}

/// One step, as far as the GPU has been told of it.
fn step(started: &mut Started, number: u64) {
    let Started { replica, data, .. } = started;
    let (step, elements) = (Step(number), replica.gradient_len());
    let gradient = &mut Kept { number: 0, elements };
    let figures = replica.micro_batch(step, MicroBatch(0), &data.batch(), gradient);
    let figures = figures.unwrap_or_else(|error| panic!("{error}"));
    assert!(figures.sums.loss.is_finite(), "the loss of step {number} is {}", figures.sums.loss);
    let info = replica.update_kept(step, figures.sums.weight, figures.samples);
    info.unwrap_or_else(|error| panic!("{error}"));
}

/// Samples or tokens a second.
fn rate(started: &mut Started, time: Duration) -> f64 {
    let replica = &mut started.replica;
    let mut state = replica.state().clone();
    initialise(replica.layout(), &mut state);
    replica.swap_state(&mut state).unwrap_or_else(|error| panic!("{error}"));
    assert!(replica.keep(1), "one gradient is always there");
    (1..=WARM_UP).for_each(|number| step(started, number));
    let finish =
        |started: &Started| started.replica.device().finish().unwrap_or_else(|error| panic!("{error}"));
    finish(started);
    let (begun, mut steps) = (Instant::now(), 0);
    while begun.elapsed() < time || steps == 0 {
        steps += 1;
        step(started, WARM_UP + steps);
    }
    // As in PyTorch's loop, nobody waits for a step but the last one.
    finish(started);
    (steps * (started.data.batch().rows * started.each) as u64) as f64 / begun.elapsed().as_secs_f64()
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
    let needed = rate * operations_of_a_token(started.replica.layout().parameters, &asked.gpt2);
    let share = 100.0 * needed / peak;
    Some(format!("model FLOP utilisation {share:.1} % of {:.0} TFLOP/s of {name}", peak / 1e12))
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
    let precision = match planned(&asked) {
        Ok(precision) => precision,
        Err(what) => {
            println!("skipped: not yet: {what}");
            return ExitCode::SUCCESS;
        }
    };
    let Some(machine) = machine::Machine::open() else { return ExitCode::SUCCESS };
    let open = || machine::device_on(&machine.gpu(0), precision);
    let started = match Work::ALL.into_iter().find(|work| work.name() == asked.work) {
        Some(work) => start(work, precision, open()),
        None => start_gpt2(open, precision, &asked.gpt2),
    };
    let mut started = started.unwrap_or_else(|error| panic!("{error}"));
    eprintln!("{} rows", started.data.batch().rows);
    let rate = rate(&mut started, asked.time);
    if let Some(words) = utilisation(&started, &asked, rate) {
        println!("{words}");
    }
    println!("rate {} {} dtrain {rate:.1} {}", asked.work, asked.precision, started.unit);
    // What graphs are good for, where kernels are short; for people who look into the log.
    if let Some(work) = Work::ALL.into_iter().find(|work| work.name() == asked.work) {
        drop(started);
        let device =
            CudaDevice::one_by_one(&machine.gpu(0), precision).unwrap_or_else(|error| panic!("{error}"));
        let mut started = start(work, precision, device).unwrap_or_else(|error| panic!("{error}"));
        let slower = self::rate(&mut started, asked.time / 2);
        eprintln!("with every kernel launched by itself: {slower:.1} {}", started.unit);
    }
    ExitCode::SUCCESS
}
