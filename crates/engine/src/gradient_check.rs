//! Holds the gradients of a stage against differences of its forward pass.
//!
//! The loss is `sum(y * r)` for a random `r`. For random directions of +-1 in the parameters and in the input, the derivative by a
//! four-point stencil must equal the product of the gradient with the direction. Every buffer is full of NaN before each pass, so that
//! whatever a stage reads it has written.
//!
//! It does not know what a stage computes, nor any model.

use crate::cpu::{Cpu, CpuOptions};
use crate::stage::{ArenaPlan, Backward, Forward, Input, Mode, Pass, Shape, Stage};
use crate::stages::Chain;
use dtrain_types::{Key, MicroBatch, Seed, Site, Step, Wire};

/// How far apart the points of a difference are.
const STEP: f32 = 1.0 / 64.0;
/// Directions that are looked along.
const DIRECTIONS: u32 = 4;

/// What is wrong with a stage.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GradientError {
    /// It does not fit its input, or this machine cannot run it.
    #[error("{0}")]
    Plan(String),
    /// A gradient is not what differences say.
    #[error(
        "the gradient of the {of} is wrong: along one direction {got} by the gradient and {wanted} by differences of the forward \
         pass, where the whole gradient has length {length}"
    )]
    Wrong {
        /// `parameters` or `input`.
        of: &'static str,
        /// The gradient times the direction.
        got: f64,
        /// The derivative along it.
        wanted: f64,
        /// Length of the gradient.
        length: f64,
    },
    /// Something that must be written is not.
    #[error("{0} is not a finite number everywhere: it was not written, or read before it was")]
    NotFinite(&'static str),
    /// It depends on whether anybody wants the gradient of the input.
    #[error("the gradient of the parameters is another one where nobody wants that of the input")]
    Depends,
    /// There is nothing to compare.
    #[error("every gradient is almost zero, which proves nothing: give it another input")]
    Nothing,
}

/// Holds every gradient of a stage against differences of its forward pass, for micro-batches of `input.rows()` samples and of fewer:
/// of its parameters, and of its input unless that is token ids. `make` makes the stage each time anew.
///
/// The input is random numbers of up to 1 and parameters as well; a stage with a kink (ReLU, max-pooling) may fail where one lies on
/// it. *Units*: `tolerance` is a share of the gradient's length; 1e-3 suits most. *Order*: the same numbers each time.
///
/// *Errors*: [`GradientError`] says which gradient is wrong, and by how much.
pub fn check_gradients<S: Stage<Cpu> + 'static>(
    make: impl Fn() -> S,
    input: &Shape,
    tolerance: f64,
) -> Result<(), GradientError> {
    for rows in [input.rows(), input.rows().div_ceil(2)] {
        Check::new(Chain::new().named("", make()), input, rows)?.run(tolerance)?;
    }
    Ok(())
}

/// Numbers in [-1, 1).
fn noise(site: u32, len: usize) -> Vec<f32> {
    let key = Key::new(Seed(11), Step(0), MicroBatch(0), Site(site));
    (0..len).map(|i| key.unit_f32(i as u32) * 2.0 - 1.0).collect()
}

fn signs(site: u32, len: usize) -> Vec<f32> {
    noise(site, len).into_iter().map(|x| if x < 0.0 { -1.0 } else { 1.0 }).collect()
}

/// A planned stage, and the numbers that it is tried with.
pub struct Check {
    device: Cpu,
    chain: Chain<Cpu>,
    plan: ArenaPlan,
    per_row: [usize; 2],
    rows: usize,
    /// Its parameters; they may be changed.
    pub params: Vec<f32>,
    /// Its input, unless that is token ids; it may be changed.
    pub values: Vec<f32>,
    tokens: Vec<u32>,
    weights: Vec<f32>,
}

impl Check {
    /// Plans a chain of stages for its input; passes are over `rows` samples.
    ///
    /// *Errors*: a stage that does not fit.
    pub fn new(mut chain: Chain<Cpu>, input: &Shape, rows: usize) -> Result<Self, GradientError> {
        let options = CpuOptions { threads: 1, ..CpuOptions::default() };
        let device = Cpu::new(options).map_err(|error| GradientError::Plan(error.to_string()))?;
        let mut plan = ArenaPlan::default();
        let output = chain.plan(&device, input, &mut plan).map_err(GradientError::Plan)?;
        let per_row = [input.per_row(), output.per_row()];
        let layout = Stage::<Cpu>::layout(&chain);
        let params = noise(1, layout.parameters_len());
        let (values, tokens) = match input {
            Shape::Values { .. } => (noise(2, rows * per_row[0]), Vec::new()),
            Shape::Tokens { .. } => {
                let known = Stage::<Cpu>::vocabulary(&chain).unwrap_or(2) as f32;
                let token = |x: f32| ((x + 1.0) * 0.5 * known) as u32;
                (Vec::new(), noise(3, rows * per_row[0]).into_iter().map(token).collect())
            }
        };
        let weights = noise(4, rows * per_row[1]);
        Ok(Self { device, chain, plan, per_row, rows, params, values, tokens, weights })
    }

    /// What it was planned with.
    #[must_use]
    pub fn plan(&self) -> &ArenaPlan {
        &self.plan
    }

    fn pass(&self) -> Pass<'_, Cpu> {
        let (mode, seed, step, micro_batch) = (Mode::Train, Seed(5), Step(3), MicroBatch(2));
        let (device, rows, wire) = (&self.device, self.rows, Wire::F32);
        Pass { device, mode, seed, step, micro_batch, rows, each: rows, wire, newest: None }
    }

    fn input<'a>(&'a self, values: &'a [f32]) -> Input<'a, Cpu> {
        if values.is_empty() { Input::Ids(&self.tokens[..]) } else { Input::Values(values) }
    }

    /// Runs forward from memory full of NaN; gives `y`, `saved` and `scratch`.
    ///
    /// *Errors*: an output or a statistic that is not written.
    pub fn forward(&self, params: &[f32], values: &[f32]) -> Result<[Vec<f32>; 3], GradientError> {
        let poison = |len: usize| vec![f32::NAN; len];
        let stats = Stage::<Cpu>::layout(&self.chain).stats_len();
        let (mut y, mut sums) = (poison(self.rows * self.per_row[1]), poison(stats));
        let (mut saved, mut scratch) = (poison(self.plan.saved), poison(self.plan.scratch));
        let running = vec![0.5; stats];
        let io = Forward {
            params,
            frozen: &[][..],
            stats: &running[..],
            stat_sums: Some(&mut sums[..]),
            x: self.input(values),
            y: &mut y[..],
            saved: &mut saved[..],
            scratch: &mut scratch[..],
        };
        self.chain.forward(&self.pass(), io);
        for (what, values) in [("a statistic", &sums), ("the output", &y)] {
            finite(what, values)?;
        }
        Ok([y, saved, scratch])
    }

    fn loss(&self, params: &[f32], values: &[f32]) -> Result<f64, GradientError> {
        let [y, ..] = self.forward(params, values)?;
        Ok(y.iter().zip(&self.weights).map(|(y, r)| f64::from(*y) * f64::from(*r)).sum())
    }

    /// The gradients with respect to the parameters and, where it is wanted, to the input.
    ///
    /// *Errors*: as [`Check::forward`]; a gradient that is not written.
    pub fn gradients(&self, values: &[f32], wanted: Wanted) -> Result<(Vec<f32>, Vec<f32>), GradientError> {
        let [y, mut saved, mut scratch] = self.forward(&self.params, values)?;
        scratch.fill(f32::NAN);
        let mut dy = self.weights.clone();
        let (mut grads, mut dx) = (vec![f32::NAN; self.params.len()], vec![f32::NAN; values.len()]);
        let io = Backward {
            params: &self.params[..],
            frozen: &[][..],
            x: self.input(values),
            y: &y[..],
            saved: &mut saved[..],
            dy: &mut dy[..],
            dx: (wanted == Wanted::Both).then_some(&mut dx[..]),
            grads: &mut grads[..],
            scratch: &mut scratch[..],
        };
        self.chain.backward(&self.pass(), io);
        finite("the gradient of the parameters", &grads)?;
        if wanted == Wanted::Both {
            finite("the gradient of the input", &dx)?;
        }
        Ok((grads, dx))
    }

    /// Compares all gradients.
    ///
    /// *Errors*: [`GradientError`].
    pub fn run(&self, tolerance: f64) -> Result<(), GradientError> {
        let values = &self.values[..];
        let wanted = if values.is_empty() { Wanted::Parameters } else { Wanted::Both };
        let (grads, dx) = self.gradients(values, wanted)?;
        let (same, _) = self.gradients(values, Wanted::Parameters)?;
        if grads != same {
            return Err(GradientError::Depends);
        }
        let length = |of: &[f32]| of.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        if [&grads, &dx].iter().any(|gradient| !gradient.is_empty() && length(gradient) <= 1e-3) {
            return Err(GradientError::Nothing);
        }
        for site in 10..10 + DIRECTIONS {
            let to = signs(site, self.params.len());
            let along = |t: f32| self.loss(&moved(&self.params, &to, t), values);
            compare("parameters", derivative(along)?, (&grads, &to), tolerance)?;
            let to = signs(site + 10, values.len());
            let along = |t: f32| self.loss(&self.params, &moved(values, &to, t));
            compare("input", derivative(along)?, (&dx, &to), tolerance)?;
        }
        Ok(())
    }
}

/// Which gradients are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Those of the parameters, as of a first stage.
    Parameters,
    /// That of the input too.
    Both,
}

fn finite(what: &'static str, values: &[f32]) -> Result<(), GradientError> {
    if values.iter().all(|x| x.is_finite()) { Ok(()) } else { Err(GradientError::NotFinite(what)) }
}

fn moved(from: &[f32], direction: &[f32], by: f32) -> Vec<f32> {
    from.iter().zip(direction).map(|(x, d)| x + by * d).collect()
}

fn derivative(along: impl Fn(f32) -> Result<f64, GradientError>) -> Result<f64, GradientError> {
    let near = along(STEP)? - along(-STEP)?;
    let far = along(2.0 * STEP)? - along(-2.0 * STEP)?;
    Ok((8.0 * near - far) / (12.0 * f64::from(STEP)))
}

fn compare(
    of: &'static str,
    wanted: f64,
    (gradient, direction): (&[f32], &[f32]),
    tolerance: f64,
) -> Result<(), GradientError> {
    let got: f64 = gradient.iter().zip(direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
    let length = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
    match (got - wanted).abs() <= tolerance * length {
        true => Ok(()),
        false => Err(GradientError::Wrong { of, got, wanted, length }),
    }
}
