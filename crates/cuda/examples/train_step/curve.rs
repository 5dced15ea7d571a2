//! The losses of GPT-2 while it learns a text: `loss STEP VALUE`, from the start and on the batches of `torch_gpu.py --curve`.
//!
//! Tokens are bytes of the text. Batches follow one another in it, row by row, and begin anew before its end.

use crate::asked::Asked;
use crate::started::{Started, one_step};
use dtrain_cuda::{CudaDevice, Precision};
use dtrain_engine::models::peer::Large;
use dtrain_engine::{BatchView, EngineError, Inputs, Targets};
use std::path::Path;

/// Rows of a batch, if none are asked for, and the learning rate.
const ROWS: usize = 8;
const RATE: f64 = 3e-4;

/// The tokens of a step and what comes behind each. *Panics* if the text is shorter than a row.
fn batch(text: &[u8], step: u64, rows: usize, time: usize) -> [Vec<u32>; 2] {
    let last = text.len().checked_sub(time).filter(|last| *last > 0).expect("a text longer than a row");
    let from = |row: usize| ((step as usize - 1) * rows + row) * time % last;
    let tokens = |behind: usize| {
        let of_row = |row| text[from(row) + behind..][..time].iter().copied().map(u32::from);
        (0..rows).flat_map(of_row).collect()
    };
    [tokens(0), tokens(1)]
}

/// Prints the curve. *Errors*: there is no room.
pub fn print(
    asked: &Asked,
    precision: Precision,
    device: CudaDevice,
    file: &Path,
) -> Result<(), EngineError> {
    let text = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let (rows, time) = (asked.batch.unwrap_or(ROWS), asked.gpt2.context);
    let mut started = Started::large(Large::Gpt2(asked.gpt2), precision, device, rows, Some(RATE))?;
    started.begin();
    for step in 1..=asked.steps {
        let [tokens, next] = batch(&text, step, rows, time);
        let (inputs, targets) = (Inputs::Tokens(&tokens), Targets::Classes(&next));
        let loss = one_step(&mut started.replica, step, &BatchView { rows, inputs, targets });
        println!("loss {step} {loss:.6}");
    }
    Ok(())
}
