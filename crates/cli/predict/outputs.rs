//! Where predictions go: a CSV, JSON lines, a NumPy array; a file that is whole or not there, or standard output.

use super::format::Format;
use super::worker::Predicted;
use crate::csv_field::csv_field;
use crate::error::CliError;
use crate::whole_file::WholeFile;
use dtrain_data::{Preparation, TargetSpec};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::Path;

/// Turns outputs into lines.
#[derive(Clone, Debug)]
pub struct OutputLines {
    format: Format,
    preparation: Preparation,
    /// What is predicted, by class or by target.
    names: Vec<String>,
    classifies: bool,
}

/// The probabilities that outputs of a model are: their softmax.
pub fn probabilities(outputs: &[f32], into: &mut Vec<f64>) {
    let most = outputs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    into.clear();
    into.extend(outputs.iter().map(|output| f64::from(output - most).exp()));
    let sum: f64 = into.iter().sum();
    into.iter_mut().for_each(|share| *share /= sum);
}

/// The first of the greatest.
#[must_use]
pub fn greatest(outputs: &[f32]) -> usize {
    let mut best = 0;
    for (class, output) in outputs.iter().enumerate() {
        if *output > outputs[best] {
            best = class;
        }
    }
    best
}

impl OutputLines {
    /// For a model whose samples are prepared so.
    ///
    /// *Errors*: a model of texts, which predicts a class for each token.
    pub fn new(format: Format, preparation: &Preparation) -> Result<Self, CliError> {
        let (classifies, names) = match preparation.target {
            TargetSpec::Class { classes } => {
                (true, (0..classes as usize).map(|class| preparation.class_name(class)).collect())
            }
            TargetSpec::Values { width: 1 } => (false, vec!["prediction".to_owned()]),
            TargetSpec::Values { width } => {
                (false, (0..width).map(|at| format!("prediction_{at}")).collect())
            }
            TargetSpec::ClassPerToken { .. } => {
                let error = CliError::usage("a model of texts predicts a class for each token");
                return Err(
                    error.hint("`dtrain eval` gives its perplexity; predict is for classes and numbers")
                );
            }
        };
        Ok(Self { format, preparation: preparation.clone(), names, classifies })
    }

    /// The first line of a CSV.
    fn head(&self) -> String {
        let names = self
            .names
            .iter()
            .map(|name| if self.classifies { csv_field(&format!("p({name})")) } else { name.clone() });
        let names: Vec<String> = names.collect();
        match self.classifies {
            true => format!("prediction,{}\n", names.join(",")),
            false => format!("{}\n", names.join(",")),
        }
    }

    /// What is written for some samples.
    #[must_use]
    pub fn render(&self, predicted: &Predicted) -> Vec<u8> {
        let width = self.names.len();
        let mut text = Vec::with_capacity(predicted.rows * width * 12);
        let mut shares = Vec::new();
        for outputs in predicted.outputs.chunks_exact(width) {
            let values: Vec<f32> = match self.classifies {
                true => {
                    probabilities(outputs, &mut shares);
                    shares.iter().map(|share| *share as f32).collect()
                }
                false => (0..)
                    .zip(outputs)
                    .map(|(target, output)| self.preparation.restore(target, *output) as f32)
                    .collect(),
            };
            let called = self.classifies.then(|| self.names[greatest(outputs)].as_str());
            self.row(called, &values, &mut text);
        }
        text
    }

    fn row(&self, called: Option<&str>, values: &[f32], text: &mut Vec<u8>) {
        match self.format {
            Format::Npy => values.iter().for_each(|value| text.extend(value.to_le_bytes())),
            Format::Csv => {
                text.extend(called.map(csv_field).unwrap_or_default().bytes());
                for (at, value) in values.iter().enumerate() {
                    if at > 0 || called.is_some() {
                        text.push(b',');
                    }
                    // Writing to memory cannot fail.
                    let _ = write!(text, "{value}");
                }
                text.push(b'\n');
            }
            Format::Jsonl => {
                let numbers: Map<String, Value> =
                    self.names.iter().zip(values).map(|(name, value)| (name.clone(), json!(value))).collect();
                let line = match called {
                    Some(name) => json!({"prediction": name, "probabilities": numbers}),
                    None => Value::Object(numbers),
                };
                let _ = writeln!(text, "{line}");
            }
        }
    }
}

/// Writes predictions.
pub struct Writer {
    out: Out,
    shape: OutputLines,
    rows: u64,
}

enum Out {
    Standard,
    File(WholeFile),
}

/// Room for the header of an array, however many rows it will have.
const NPY_HEADER: usize = 128;

impl Writer {
    /// Into a file, which appears when it is whole, or to standard output.
    ///
    /// *Errors*: the file cannot be written; an array for standard output.
    pub fn new(path: Option<&Path>, shape: OutputLines) -> Result<Self, CliError> {
        let out = match path {
            None if shape.format == Format::Npy => {
                return Err(CliError::usage("an array needs a file").hint("name it with -o predictions.npy"));
            }
            None => Out::Standard,
            Some(path) => Out::File(WholeFile::create(path)?),
        };
        let mut writer = Self { out, shape, rows: 0 };
        match writer.shape.format {
            Format::Csv => {
                let head = writer.shape.head();
                writer.put(head.as_bytes())?;
            }
            Format::Npy => writer.put(&[0; NPY_HEADER])?,
            Format::Jsonl => {}
        }
        Ok(writer)
    }

    /// Adds what was rendered of so many samples.
    ///
    /// *Errors*: the disk is full, or the like.
    pub fn add(&mut self, rows: usize, text: &[u8]) -> Result<(), CliError> {
        self.rows += rows as u64;
        self.put(text)
    }

    /// How many samples were written.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        match &mut self.out {
            Out::Standard => match std::io::stdout().lock().write_all(bytes) {
                // A reader that has gone away (`| head`) wants no more.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
                written => written
                    .map_err(|error| CliError::failed("cannot write to standard output").because(&error)),
            },
            Out::File(file) => file.write(bytes),
        }
    }

    /// Makes the file appear.
    ///
    /// *Errors*: the disk is full, or the like; then there is no file, or the one that was there before.
    pub fn finish(self) -> Result<(), CliError> {
        let Out::File(mut file) = self.out else { return Ok(()) };
        if self.shape.format == Format::Npy {
            file.overwrite_start(&npy_header(self.rows, self.shape.names.len()))?;
        }
        file.finish()
    }
}

/// *Source*: NEP 1, version 1.0 of the format.
fn npy_header(rows: u64, width: usize) -> [u8; NPY_HEADER] {
    let shape = if width == 1 { format!("({rows},)") } else { format!("({rows}, {width})") };
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
    let mut header = [b' '; NPY_HEADER];
    header[..10].copy_from_slice(b"\x93NUMPY\x01\x00\x76\x00");
    header[10..10 + text.len()].copy_from_slice(text.as_bytes());
    header[NPY_HEADER - 1] = b'\n';
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_to_one_and_keep_their_order_however_large_the_outputs() {
        let mut shares = Vec::new();
        probabilities(&[1000.0, 1001.0, -1e30], &mut shares);
        assert!(
            (shares.iter().sum::<f64>() - 1.0).abs() < 1e-12 && shares[1] > shares[0] && shares[2] == 0.0
        );
        assert_eq!(greatest(&[0.5, 2.0, 2.0]), 1);
    }

    #[test]
    fn the_header_of_an_array_has_its_length_whatever_the_shape() {
        for (rows, width) in [(0, 1), (3, 1), (u64::from(u32::MAX), 65_536)] {
            let header = npy_header(rows, width);
            assert_eq!(
                (10 + u16::from_le_bytes([header[8], header[9]]) as usize, header.len() % 64),
                (NPY_HEADER, 0)
            );
            assert!(header.ends_with(b"\n"));
        }
    }
}
