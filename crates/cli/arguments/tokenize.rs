//! The command line of `tokenize`.

use super::output::Output;
use clap::Args;
use dtrain_data::MOST_TOKENS;
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  dtrain tokenize text.txt --vocabulary 8192 -o data     learn 8192 tokens from a text, and write it in them
  dtrain tokenize a.txt b.txt.gz -t gpt2 -o data         by the tokenizer.json in the folder gpt2
  dtrain tokenize train.jsonl --val val.jsonl -t tokenizer.json -o data
  dtrain tokenize docs.parquet --field content -t tokenizer.json -o data
  dtrain tokenize chats.jsonl --chat -t SmolLM2-135M-Instruct -o data    conversations: answers alone are learnt
  dtrain train data.kind=tokens data.path=data           then";

/// What is read of a line of `.jsonl` or a row of Parquet, unless it is said.
pub const FIELD: &str = "text";

/// `dtrain tokenize`.
#[derive(Args, Clone, Debug)]
pub struct Tokenize {
    /// Texts, JSON Lines (.jsonl; both plain, .gz or .zst) and Parquet files, or folders of them; - is a text on standard input, or conversations
    #[arg(required = true, value_name = "TEXT")]
    pub texts: Vec<PathBuf>,
    /// The folder for train.bin, val.bin, tokenizer.json and what lies beside that; it is made if it is not there
    #[arg(short = 'o', long = "output", value_name = "FOLDER")]
    pub folder: PathBuf,
    /// A tokenizer.json of Hugging Face, or a folder that has one
    #[arg(
        short,
        long,
        value_name = "FILE",
        required_unless_present = "vocabulary",
        conflicts_with = "vocabulary"
    )]
    pub tokenizer: Option<PathBuf>,
    /// Learn a new tokenizer from the texts, of at most so many tokens: pairs of bytes, as those of GPT-2
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(257..=MOST_TOKENS as i64))]
    pub vocabulary: Option<u32>,
    /// A text to validate on, for val.bin; may be given several times [default: training holds out the end of train.bin]
    #[arg(long, value_name = "TEXT")]
    pub val: Vec<PathBuf>,
    /// What is read of each line of .jsonl, and of each row of Parquet
    #[arg(long, value_name = "NAME", default_value = FIELD)]
    pub field: String,
    /// Records (.jsonl, .json or Parquet) are conversations (messages, prompt and completion, or instruction and output), of which answers alone are learnt
    #[arg(long, conflicts_with_all = ["field", "vocabulary"])]
    pub chat: bool,
    /// How conversations are written, in Jinja [default: chat_template.jinja beside the tokenizer, or what its tokenizer_config.json says]
    #[arg(long, value_name = "FILE", requires = "chat")]
    pub template: Option<PathBuf>,
    /// The token behind each text, or none [default: that of the tokenizer: by the tokenizer_config.json beside it, or by a usual name]
    #[arg(long, value_name = "TOKEN")]
    pub end: Option<String>,
    /// How much is said.
    #[command(flatten)]
    pub output: Output,
}
