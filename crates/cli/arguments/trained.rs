//! The command lines of what is done with trained models: `eval`, `predict`, `generate`, `chat`, `export`.

use super::output::Output;
use crate::generate::Sampling;
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
  dtrain predict runs/text lines.txt                     the byte, or token, that comes after each line
  cat new.csv | dtrain predict runs/first - | head       standard input
  dtrain predict runs/cats photos/ --devices cuda:0      on a GPU";

pub(super) const GENERATE_EXAMPLES: &str = "\
Examples:
  dtrain generate runs/text                                   256 bytes behind a line break
  dtrain generate runs/text -p \"To be, or\" -t 1000            what comes behind these words
  dtrain generate runs/text -n 8 --temperature 1 --top-k 40   eight texts, less cautious ones
  dtrain generate runs/text -p - --json < question.txt        for programs
  dtrain generate runs/chat --chat \"Why is it so?\"           the answer of a model that learnt from conversations
  dtrain generate runs/gpt2 --ids 464,3280,318 -t 50          of a model of ids without a tokenizer
  dtrain generate runs/gpt2 --ids 464 --devices cuda:0        on a GPU";

pub(super) const CHAT_EXAMPLES: &str = "\
Examples:
  dtrain chat runs/chats                                a question a line
  dtrain chat runs/chats --system \"Answer in rhymes.\"   what it is told first
  dtrain chat runs/chats --json < asked.txt             for programs

/new begins anew, /exit or Ctrl-D ends. What was said is a part of each question;
the oldest questions and their answers are forgotten where there is no room for all.";

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
    /// A table with the column of the target, an array, a folder of images, a text, conversations, token ids [default: the validation part of the run]
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

/// `dtrain generate`.
#[derive(Args, Clone, Debug)]
pub struct Generate {
    /// Run folder or name, with /CHECKPOINT for another than the best
    pub run: String,
    /// What the text begins with; - reads it from standard input [default: a line break, or the end of another text]
    #[arg(short, long, value_name = "TEXT", conflicts_with = "ids", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// The same as token ids, of models that were trained on ids
    #[arg(long, value_name = "ID,ID,...", value_delimiter = ',')]
    pub ids: Vec<u32>,
    /// Ask a model that was trained on conversations, and write its answer; - reads it from standard input
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["prompt", "ids"], allow_hyphen_values = true)]
    pub chat: Option<String>,
    /// What the model is told before it is asked
    #[arg(long, value_name = "TEXT", requires = "chat", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// How many tokens come behind that, at most; without a tokenizer each is a byte of a text
    #[arg(short, long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub tokens: u32,
    /// How many texts
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub samples: u32,
    /// How each token is chosen.
    #[command(flatten)]
    pub drawing: Drawing,
    /// How texts are computed.
    #[command(flatten)]
    pub work: Work,
    /// How much is said.
    #[command(flatten)]
    pub output: Output,
}

/// How each token of a text is chosen.
#[derive(Args, Clone, Debug)]
pub struct Drawing {
    /// What the model's outputs are divided by: below 1 it writes what it is sure of, at 0 the surest token each time
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = temperature)]
    temperature: f64,
    /// Draw among the K surest tokens alone
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    top_k: Option<u32>,
    /// Draw among the surest tokens that have this share of the probability together
    #[arg(long, value_name = "P", value_parser = share)]
    top_p: Option<f64>,
    /// The same seed gives the same texts
    #[arg(long, value_name = "N", default_value_t = 7)]
    pub seed: u64,
}

impl Drawing {
    /// As those who write take it.
    #[must_use]
    pub fn sampling(&self) -> Sampling {
        let Self { temperature, top_k, top_p, .. } = *self;
        Sampling { temperature, top_k: top_k.map(|top_k| top_k as usize), top_p }
    }
}

/// `dtrain chat`.
#[derive(Args, Clone, Debug)]
pub struct Chat {
    /// Run folder or name, with /CHECKPOINT for another than the best
    pub run: String,
    /// What the model is told before it is asked
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// How many tokens an answer has, at most
    #[arg(short, long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub tokens: u32,
    /// How each token is chosen.
    #[command(flatten)]
    pub drawing: Drawing,
    /// What computes: cpu, or a GPU as in training (auto, cuda:0), in the precision of the run
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub devices: String,
    /// How much is said.
    #[command(flatten)]
    pub output: Output,
}

fn temperature(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "it is a number of at least 0, such as 0.8".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0 && *number <= 1.0);
    number.ok_or_else(|| "it is a number above 0 and at most 1, such as 0.9".to_owned())
}

/// `dtrain export`.
#[derive(Args, Clone, Debug)]
pub struct Export {
    /// Run folder or name, with /CHECKPOINT for another than the best
    pub run: String,
    /// For whom
    #[arg(long)]
    pub to: ExportTo,
    /// The file to write, or for torch, transformers and peft the folder [default: the name of the run]
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
    /// Whoever reads models of Hugging Face's transformers: of llama, gpt and gpt2.
    Transformers,
    /// Whoever reads adapters of Hugging Face's PEFT: of runs with model.lora_rank.
    Peft,
}
