//! One of those who compute: a replica, and the room for its samples.

use super::inputs::Piece;
use crate::error::CliError;
use crate::trained::Trained;
use dtrain_data::{CsvRows, RowParser};
use dtrain_engine::cpu::Cpu;
use dtrain_engine::{Inputs, ModelReplica, Replica};

/// Computes predictions of pieces.
pub struct Worker {
    replica: ModelReplica<Cpu>,
    batch: usize,
    width: usize,
    outputs: usize,
    rows: CsvRows,
}

/// What the samples of a piece came to.
#[derive(Debug, Default)]
pub struct Predicted {
    /// The outputs of the model, sample by sample.
    pub outputs: Vec<f32>,
    /// The text in the column of the target, where a table has it.
    pub targets: Vec<String>,
    /// The line of each sample in its file, where it has one.
    pub lines: Vec<u64>,
    /// How many samples there are.
    pub rows: usize,
}

impl Worker {
    /// As many as asked for, each for up to `batch` samples at once.
    ///
    /// *Errors*: a damaged checkpoint, too little memory.
    pub fn several(trained: &Trained, ranks: u32, batch: u32) -> Result<Vec<Self>, CliError> {
        let spec = trained.preparation.spec();
        let one = |_| {
            let replica = trained.replica(batch)?;
            let outputs = spec.classes().map_or(spec.target_width(), |classes| classes as usize);
            let (width, batch) = (spec.input_width(), batch as usize);
            Ok(Self { replica, batch, width, outputs, rows: CsvRows::default() })
        };
        (0..ranks).map(one).collect()
    }

    /// The replica, for evaluations that need more of it.
    pub fn replica(&mut self) -> &mut ModelReplica<Cpu> {
        &mut self.replica
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
                Ok(Predicted { outputs: outputs?, rows: lines.len(), targets, lines })
            }
            Piece::Values(values) => {
                let outputs = self.outputs_of(&values)?;
                let rows = values.len() / self.width;
                Ok(Predicted { outputs, rows, ..Predicted::default() })
            }
        }
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
            let done = self.replica.predict(rows, Inputs::Values(values), outputs);
            done.map_err(|error| CliError::failed(error.to_string()))?;
        }
        Ok(outputs)
    }
}
