//! One of those who compute: a replica, and the room for its samples.

use super::inputs::Piece;
use crate::arguments::Work;
use crate::config::CudaList;
use crate::error::CliError;
use crate::trained::Trained;
use dtrain_data::{CsvRows, InputSpec, Preparation, RowParser};
use dtrain_engine::device::LossSums;
use dtrain_engine::{BatchView, EngineError, EvaluationCounts, Inputs, Replica};
use std::panic::AssertUnwindSafe;

/// Computes predictions of pieces.
pub struct Worker {
    replica: Box<dyn Replica>,
    batch: usize,
    width: usize,
    outputs: usize,
    rows: CsvRows,
    preparation: Preparation,
}

/// What the inputs of samples that are computed at once take. *Units*: bytes.
const INPUTS: usize = 32 << 20;

/// What the outputs of samples that are computed at once take. *Units*: bytes.
const OUTPUTS: usize = 256 << 20;

/// How many samples are computed at once where `asked` are asked for: fewer, if a model of texts has many outputs for each.
#[must_use]
pub fn at_once(preparation: &Preparation, asked: u32) -> u32 {
    let spec = preparation.spec();
    match spec.input {
        InputSpec::Values { shape } => {
            let each = shape.iter().product::<usize>() * size_of::<f32>();
            asked.min(u32::try_from(INPUTS / each.max(1)).unwrap_or(u32::MAX)).max(1)
        }
        InputSpec::Tokens { length, vocabulary } => {
            let each = length * vocabulary as usize * size_of::<f32>();
            asked.min(u32::try_from(OUTPUTS / each.max(1)).unwrap_or(u32::MAX)).max(1)
        }
    }
}

/// What the samples of a piece came to.
#[derive(Debug, Default)]
pub struct Predicted {
    /// The outputs of the model, sample by sample.
    pub outputs: Vec<f32>,
    /// The text in the column of the target, where a table has it.
    pub targets: Vec<String>,
    /// The line of each sample in its file, where it has one; of a window that of its first row.
    pub lines: Vec<u64>,
    /// The line of the last row of each window.
    pub last_lines: Vec<u64>,
    /// How many samples there are.
    pub rows: usize,
    /// The file of each sample, where each is one.
    pub files: Vec<String>,
    /// Of sequences of tokens, how many each has: there are outputs after each token.
    pub lengths: Vec<usize>,
}

fn failed(error: EngineError) -> CliError {
    CliError::failed(error.to_string())
}

/// What this comes to. *Errors*: also what a device fails in, which its operations tell by a panic.
pub fn unless_it_fails<T>(work: impl FnOnce() -> Result<T, CliError>) -> Result<T, CliError> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        match panic.downcast::<String>() {
            Ok(words) => Err(CliError::failed(*words)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

impl Worker {
    /// As many as asked for, each for up to `batch` samples at once, or [`at_once`]. `tell` hears what takes its time.
    ///
    /// *Errors*: a damaged checkpoint, too little memory, no such GPUs.
    pub fn several(
        trained: &Trained,
        work: &Work,
        batch: u32,
        tell: impl Fn(&str),
    ) -> Result<Vec<Self>, CliError> {
        let spec = trained.preparation.spec();
        let batch = at_once(&trained.preparation, batch);
        let gpus = trained.gpus(&work.devices, tell)?;
        let one = |gpu| {
            let replica = unless_it_fails(|| trained.replica_on(gpu, batch))?;
            let outputs = spec.classes().map_or(spec.target_width(), |classes| classes as usize);
            let (width, batch) = (spec.input_width(), batch as usize);
            let preparation = trained.preparation.clone();
            Ok(Self { replica, batch, width, outputs, rows: CsvRows::default(), preparation })
        };
        work.seats(gpus.as_ref().map(CudaList::numbers)).into_iter().map(one).collect()
    }

    /// The loss of a batch, and what it counts.
    ///
    /// *Errors*: of the model or its device.
    pub fn evaluate(
        &mut self,
        batch: &BatchView<'_>,
        counts: &mut EvaluationCounts,
    ) -> Result<LossSums, CliError> {
        unless_it_fails(|| self.replica.evaluate(batch, counts).map_err(failed))
    }

    /// *Errors*: of the model or its device.
    fn predicted(
        replica: &mut dyn Replica,
        rows: usize,
        inputs: Inputs<'_>,
        to: &mut [f32],
    ) -> Result<(), CliError> {
        unless_it_fails(|| replica.predict(rows, inputs, to).map_err(failed))
    }

    /// Predicts the samples of a piece; `parser` reads those that are text.
    ///
    /// *Errors*: a line that is not as the columns are.
    pub fn predict(&mut self, piece: Piece, parser: Option<&RowParser>) -> Result<Predicted, CliError> {
        match piece {
            Piece::Text { text, first_line } => {
                let parser = parser.expect("text comes with what reads it");
                let mut rows = std::mem::take(&mut self.rows);
                rows.clear();
                parser.parse(&text, first_line, &mut rows)?;
                let outputs = self.outputs_of(&rows.values);
                let (targets, lines) = (std::mem::take(&mut rows.targets), rows.lines.clone());
                self.rows = rows;
                Ok(Predicted { outputs: outputs?, rows: lines.len(), targets, lines, ..Predicted::default() })
            }
            Piece::Tokens(sequences) => {
                let outputs = self.outputs_after(&sequences)?;
                let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
                Ok(Predicted { outputs, rows: lengths.len(), lengths, ..Predicted::default() })
            }
            Piece::Images { images, files } => {
                let names = images.files()[files.clone()].iter().map(|file| file.display().to_string());
                let names: Vec<String> = names.collect();
                let outputs = self.outputs_of(&images.read(files, &self.preparation)?)?;
                Ok(Predicted { outputs, rows: names.len(), files: names, ..Predicted::default() })
            }
            Piece::Windows { recordings, windows } => {
                let outputs = self.outputs_of(&recordings.read(windows.clone(), &self.preparation))?;
                let spots = recordings.spots(windows.clone());
                let labels = recordings.labels().map_or(&[][..], |labels| &labels[windows]);
                Ok(Predicted {
                    outputs,
                    rows: spots.len(),
                    targets: labels.to_vec(),
                    files: spots.iter().map(|spot| recordings.file(*spot).display().to_string()).collect(),
                    lines: spots.iter().map(|spot| spot.from).collect(),
                    last_lines: spots.iter().map(|spot| spot.to).collect(),
                    ..Predicted::default()
                })
            }
            Piece::Values(values) => {
                let outputs = self.outputs_of(&values)?;
                let rows = values.len() / self.width;
                Ok(Predicted { outputs, rows, ..Predicted::default() })
            }
        }
    }

    /// The outputs of the model after each token of each sequence. What is behind the end of a short one does not count: no
    /// token sees what comes after it.
    fn outputs_after(&mut self, sequences: &[Vec<u32>]) -> Result<Vec<f32>, CliError> {
        let (time, vocabulary) = (self.width, self.outputs);
        let mut kept = Vec::with_capacity(sequences.iter().map(Vec::len).sum::<usize>() * vocabulary);
        for sequences in sequences.chunks(self.batch) {
            let mut ids = vec![0; sequences.len() * time];
            let mut outputs = vec![0.0; ids.len() * vocabulary];
            ids.chunks_mut(time).zip(sequences).for_each(|(row, ids)| row[..ids.len()].copy_from_slice(ids));
            Self::predicted(&mut *self.replica, sequences.len(), Inputs::Tokens(&ids), &mut outputs)?;
            for (outputs, sequence) in outputs.chunks_exact(time * vocabulary).zip(sequences) {
                kept.extend_from_slice(&outputs[..sequence.len() * vocabulary]);
            }
        }
        Ok(kept)
    }

    /// The outputs of the model for prepared values.
    ///
    /// *Errors*: of the model.
    pub fn outputs_of(&mut self, values: &[f32]) -> Result<Vec<f32>, CliError> {
        let rows = values.len() / self.width;
        let mut outputs = vec![0.0; rows * self.outputs];
        let samples = values.chunks(self.batch * self.width);
        for (values, outputs) in samples.zip(outputs.chunks_mut(self.batch * self.outputs)) {
            let rows = values.len() / self.width;
            Self::predicted(&mut *self.replica, rows, Inputs::Values(values), outputs)?;
        }
        Ok(outputs)
    }
}
