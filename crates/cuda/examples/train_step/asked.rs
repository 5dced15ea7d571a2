//! What is asked for on the command line: pairs of a name and a value.

use dtrain_cuda::Precision;
use dtrain_engine::models::GptOptions;
use dtrain_engine::models::peer::{Large, Work, gpt2_options};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// What is asked for.
#[derive(Clone)]
pub struct Asked {
    pub work: String,
    pub precision: String,
    pub time: Duration,
    /// Not the workload's own batch, or for large ones the only one that is tried.
    pub batch: Option<usize>,
    /// So many kernels that take the largest shares of a step are listed.
    pub shares: usize,
    /// So many windows, each when a line of standard input asks for it, instead of one now.
    pub turns: usize,
    /// Whether libraries do the products and convolutions that they are faster at, chosen now.
    pub library: bool,
    /// The text to learn, instead of measuring.
    pub curve: Option<PathBuf>,
    /// Steps of that curve.
    pub steps: u64,
    /// GPT-2, or a small one of its kind.
    pub gpt2: GptOptions,
}

const NAMES: &str =
    "--work, --precision, --seconds, --batch, --shares, --turns, --library, --curve, --steps, --width";

/// A number in a range, or what is wrong with it.
fn number<T: FromStr + PartialOrd>(value: &str, least: T, most: T, what: &str) -> Result<T, String> {
    let number = value.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or(format!("{value} is no {what}"))
}

impl Asked {
    pub fn new(arguments: &[String]) -> Result<Self, String> {
        let mut asked = Self {
            work: String::new(),
            precision: "f32".to_owned(),
            time: Duration::from_secs(2),
            batch: None,
            shares: 0,
            turns: 0,
            library: false,
            curve: None,
            steps: 60,
            gpt2: gpt2_options(),
        };
        for pair in arguments.chunks(2) {
            let [name, value] = pair else { return Err(format!("{} needs a value", pair[0])) };
            asked.take(name, value)?;
        }
        known(&asked.work, &["mlp", "gpt", "cnn", "cnn3d", "gpt2", "vit", "llama"])?;
        known(&asked.precision, &["f32", "tf32", "bf16", "f16"])?;
        match asked.curve.is_some() && asked.work != "gpt2" {
            true => Err("only gpt2 learns a text".to_owned()),
            false => Ok(asked),
        }
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "--work" => value.clone_into(&mut self.work),
            "--precision" => value.clone_into(&mut self.precision),
            "--seconds" => {
                self.time = Duration::from_secs_f64(number(value, 0.0, 3600.0, "time in seconds")?);
            }
            "--batch" => self.batch = Some(number(value, 1, 1 << 20, "batch")?),
            "--shares" => self.shares = number(value, 1, 1000, "number of kernels")?,
            "--turns" => self.turns = number(value, 1, 1000, "number of windows")?,
            "--library" => self.library = number(value, 0, 1, "0 or 1")? == 1,
            "--curve" => self.curve = Some(value.into()),
            "--steps" => self.steps = number(value, 1, 1_000_000, "number of steps")?,
            // To try this program on a stand-in for a GPU.
            "--width" => {
                let width = 12 * number(value, 1, 64, "twelfth of a small width")?;
                self.gpt2 = GptOptions { vocabulary: 256, context: 16, layers: 2, width, ..self.gpt2 };
            }
            _ => return Err(format!("there is no {name}: {NAMES}")),
        }
        Ok(())
    }

    /// The workload, if it is one that fills a GPU.
    pub fn large(&self) -> Option<Large> {
        Large::named(&self.work).map(|large| match large {
            Large::Gpt2(_) => Large::Gpt2(self.gpt2),
            Large::Vit | Large::Llama => large,
        })
    }

    /// The workload, unless it is a large one.
    pub fn peer(&self) -> Option<Work> {
        Work::ALL.into_iter().find(|work| work.name() == self.work)
    }

    /// The precision, or what is missing for what is asked.
    pub fn precision(&self) -> Result<Precision, String> {
        match self.precision.as_str() {
            "f32" => Ok(Precision::F32),
            "tf32" => Ok(Precision::Tf32),
            "bf16" => Ok(Precision::Bf16),
            "f16" => Ok(Precision::F16),
            precision => Err(format!("there are no products in {precision}")),
        }
    }
}

fn known(value: &str, of: &[&str]) -> Result<(), String> {
    match of.contains(&value) {
        true => Ok(()),
        false => Err(format!("there is no {value:?}: {}", of.join(", "))),
    }
}
