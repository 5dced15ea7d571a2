//! The formats that predictions are written in.

use std::path::Path;

/// How predictions are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A line a sample, with names in the first.
    Csv,
    /// A JSON object a line.
    Jsonl,
    /// A NumPy array: probabilities or numbers, `f32`, a row a sample.
    Npy,
}

impl Format {
    /// That of a file, by the end of its name.
    #[must_use]
    pub fn of(file: &Path) -> Option<Self> {
        match file.extension()?.to_str()? {
            "csv" => Some(Self::Csv),
            "jsonl" | "ndjson" | "json" => Some(Self::Jsonl),
            "npy" => Some(Self::Npy),
            _ => None,
        }
    }
}
