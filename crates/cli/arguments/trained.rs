//! The command lines of what is done with trained models: `eval`, `predict`, `export`.

use super::output::Output;
use clap::Args;
use std::path::PathBuf;

pub(super) const EVAL_EXAMPLES: &str = "\
Examples:
  dtrain eval runs/first                      the best checkpoint on the validation part
  dtrain eval runs/first --data test.csv      on a table with the column of the target
  dtrain eval runs/cats --data test/          on images, a folder a class
  dtrain eval runs/first --data x.npy --targets y.npy     on arrays; labels in an IDX file work too
  dtrain eval runs/first/g1-s000400 --json    another checkpoint, for programs
  dtrain eval runs/first --devices all        on every GPU

Tables and pictures are written to RUN/eval.";

pub(super) const PREDICT_EXAMPLES: &str = "\
Examples:
  dtrain predict runs/first new.csv                      class and probabilities to standard output
  dtrain predict runs/first new.csv -o predicted.csv     the same into a file; .jsonl and .npy work too
  dtrain predict runs/first images.npy -o out.npy        arrays of the shape of training
  dtrain predict runs/cats photos/ cat.jpg               images of folders and files, each with its name
  dtrain predict runs/text lines.txt                     the byte that comes after each line
  cat new.csv | dtrain predict runs/first - | head       standard input
  dtrain predict runs/cats photos/ --devices cuda:0      on a GPU";

pub(super) const EXPORT_EXAMPLES: &str = "\
Examples:
  dtrain export runs/first --to onnx                  first.onnx: from raw values to probabilities
  dtrain export runs/first --to torch -o model        a folder with model.py, its parameters and predict.py
  dtrain export runs/first --to safetensors           the parameters and running statistics alone";

/// How samples are computed.
#[derive(Args, Clone, Debug)]
pub struct Work {
    /// What computes: cpu, or GPUs as in training (all, auto, cuda:0,1), in the precision of the run
    #[arg(long, value_name = "DEVICES", default_value = "cpu")]
    pub devices: String,
    /// How many compute side by side [default: one a core, or one a GPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: Option<u32>,
    /// How many samples each takes at once; the result does not depend on it
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch: u32,
}

impl Work {
    /// What each of those that compute side by side computes on: a GPU of these by its number, or a core.
    #[must_use]
    pub fn seats(&self, gpus: Option<&[u32]>) -> Vec<Option<u32>> {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let ranks = self.ranks.map(|ranks| ranks as usize);
        match gpus {
            None => vec![None; ranks.unwrap_or_else(cores)],
            Some(gpus) => {
                gpus.iter().map(|gpu| Some(*gpu)).cycle().take(ranks.unwrap_or(gpus.len())).collect()
            }
        }
    }
}

/// `dtrain eval`.
#[derive(Args, Clone, Debug)]
pub struct Eval {
    /// Run folder or name, with /CHECKPOINT for another than the best
    pub run: String,
    /// A table with the column of the target, an array, a folder of images, a text, token ids [default: the validation part of the run]
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// The targets of an array: a .npy array, or labels in an IDX file
    #[arg(long, visible_alias = "labels", value_name = "FILE", requires = "data")]
    pub targets: Option<PathBuf>,
    /// How samples are computed.
    #[command(flatten)]
    pub work: Work,
    /// How much is said.
    #[command(flatten)]
    pub output: Output,
}

/// `dtrain predict`.
#[derive(Args, Clone, Debug)]
pub struct Predict {
    /// Run folder or name, with /CHECKPOINT for another than the best
    pub run: String,
    /// Tables, .npy arrays, IDX images, lines of a text; - is a table or a text on standard input
    #[arg(required = true, value_name = "INPUT")]
    pub inputs: Vec<PathBuf>,
    /// The file to write [default: a CSV on standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// How to write [default: what the end of FILE says]
    #[arg(long)]
    pub format: Option<crate::predict::Format>,
    /// How samples are computed.
    #[command(flatten)]
    pub work: Work,
    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// `dtrain export`.
#[derive(Args, Clone, Debug)]
pub struct Export {
    /// Run folder or name, with /CHECKPOINT for another than the best
    pub run: String,
    /// For whom
    #[arg(long)]
    pub to: ExportTo,
    /// The file to write, or for torch the folder [default: the name of the run]
    #[arg(short, long, value_name = "PATH")]
    pub output: Option<PathBuf>,
}

/// For whom a model is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ExportTo {
    /// Whoever reads safetensors.
    Safetensors,
    /// Whoever runs ONNX, opset 18.
    Onnx,
    /// Whoever has PyTorch.
    Torch,
}
