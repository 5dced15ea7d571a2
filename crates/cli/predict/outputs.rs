//! Where predictions go: a CSV, JSON lines, a NumPy array; a file that is whole or not there, or standard output.

use super::format::Format;
use super::next_token::NextToken;
use super::shares::{greatest, probabilities};
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
    /// What is predicted, by class or by target; nothing of a token.
    names: Vec<String>,
    says: Says,
    /// What comes first.
    place: Place,
}

/// What is said of where a sample is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing: it is the next.
    Order,
    /// The name of its file.
    File,
    /// The name of its file, and the lines of its first and last row.
    Lines,
}

/// What a model says of a sample.
#[derive(Clone, Debug)]
enum Says {
    Class,
    Values,
    Token(NextToken),
}

impl OutputLines {
    /// For a model whose samples are prepared so.
    ///
    /// *Panics* for a model of texts.
    #[must_use]
    pub fn new(format: Format, preparation: &Preparation) -> Self {
        let (says, names) = match preparation.target {
            TargetSpec::Class { classes } => {
                (Says::Class, (0..classes as usize).map(|class| preparation.class_name(class)).collect())
            }
            TargetSpec::Values { width: 1 } => (Says::Values, vec!["prediction".to_owned()]),
            TargetSpec::Values { width } => {
                (Says::Values, (0..width).map(|at| format!("prediction_{at}")).collect())
            }
            TargetSpec::ClassPerToken { .. } => panic!("a model of texts says which token is next"),
        };
        Self { format, preparation: preparation.clone(), names, says, place: Place::Order }
    }

    /// With the name of the file of each sample.
    #[must_use]
    pub fn of_files(self) -> Self {
        Self { place: Place::File, ..self }
    }

    /// With the file of each window, and its lines in it.
    #[must_use]
    pub fn of_windows(self) -> Self {
        Self { place: Place::Lines, ..self }
    }

    /// For a model of texts whose samples are prepared so.
    #[must_use]
    pub fn of_tokens(format: Format, preparation: &Preparation, next: NextToken) -> Self {
        Self {
            format,
            preparation: preparation.clone(),
            names: Vec::new(),
            says: Says::Token(next),
            place: Place::Order,
        }
    }

    /// The first line of a CSV.
    fn head(&self) -> String {
        let first = match self.place {
            Place::Order => "",
            Place::File => "file,",
            Place::Lines => "file,from,to,",
        };
        let rest = match &self.says {
            Says::Class => {
                let names = self.names.iter().map(|name| csv_field(&format!("p({name})")));
                format!("prediction,{}\n", names.collect::<Vec<_>>().join(","))
            }
            Says::Values => format!("{}\n", self.names.join(",")),
            Says::Token(next) => next.head().to_owned(),
        };
        format!("{first}{rest}")
    }

    /// The shape of what an array has of one sample; `[]` is one number.
    fn shape(&self) -> Vec<usize> {
        match (&self.says, self.names.len()) {
            (Says::Token(next), _) => next.shape(),
            (_, 1) => Vec::new(),
            (_, width) => vec![width],
        }
    }

    /// What is written for some samples.
    #[must_use]
    pub fn render(&self, predicted: &Predicted) -> Vec<u8> {
        if let Says::Token(next) = &self.says {
            return next.render(predicted, self.format);
        }
        let (width, classifies) = (self.names.len(), matches!(self.says, Says::Class));
        let mut text = Vec::with_capacity(predicted.rows * width * 12);
        let mut shares = Vec::new();
        for (at, outputs) in predicted.outputs.chunks_exact(width).enumerate() {
            let values: Vec<f32> = match classifies {
                true => {
                    probabilities(outputs, &mut shares);
                    shares.iter().map(|share| *share as f32).collect()
                }
                false => (0..)
                    .zip(outputs)
                    .map(|(target, output)| self.preparation.restore(target, *output) as f32)
                    .collect(),
            };
            let called = classifies.then(|| self.names[greatest(outputs)].as_str());
            let file = predicted.files.get(at).filter(|_| self.place != Place::Order).map(String::as_str);
            let lines = predicted.lines.get(at).zip(predicted.last_lines.get(at));
            let lines = lines.filter(|_| self.place == Place::Lines).map(|(from, to)| (*from, *to));
            self.row((file, lines), called, &values, &mut text);
        }
        text
    }

    fn row(
        &self,
        (file, lines): (Option<&str>, Option<(u64, u64)>),
        called: Option<&str>,
        values: &[f32],
        text: &mut Vec<u8>,
    ) {
        match self.format {
            Format::Npy => values.iter().for_each(|value| text.extend(value.to_le_bytes())),
            Format::Csv => {
                if let Some(file) = file {
                    text.extend(csv_field(file).bytes());
                    text.push(b',');
                }
                if let Some((from, to)) = lines {
                    text.extend(format!("{from},{to},").bytes());
                }
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
                let mut line = Map::new();
                line.extend(file.map(|file| ("file".to_owned(), json!(file))));
                if let Some((from, to)) = lines {
                    line.extend([("from".to_owned(), json!(from)), ("to".to_owned(), json!(to))]);
                }
                match called {
                    Some(name) => {
                        line.insert("prediction".to_owned(), json!(name));
                        line.insert("probabilities".to_owned(), Value::Object(numbers));
                    }
                    None => line.extend(numbers),
                }
                let line = Value::Object(line);
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
            file.overwrite_start(&npy_header(self.rows, &self.shape.shape()))?;
        }
        file.finish()
    }
}

/// *Source*: NEP 1, version 1.0 of the format.
fn npy_header(rows: u64, row: &[usize]) -> [u8; NPY_HEADER] {
    let sides: String = row.iter().map(|side| format!(" {side},")).collect();
    let shape = format!("({rows},{})", sides.trim_end_matches(','));
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
    fn the_header_of_an_array_has_its_length_whatever_the_shape() {
        for (rows, row) in [(0, &[][..]), (3, &[2]), (u64::from(u32::MAX), &[65_536, 65_536])] {
            let header = npy_header(rows, row);
            assert_eq!(
                (10 + u16::from_le_bytes([header[8], header[9]]) as usize, header.len() % 64),
                (NPY_HEADER, 0)
            );
            assert!(header.ends_with(b"\n"));
            let said = String::from_utf8_lossy(&header).into_owned();
            assert!(said.contains(if rows == 0 { "(0,)" } else { ")" }) && !said.contains(",,"), "{said}");
        }
    }
}
