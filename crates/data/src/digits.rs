//! The data set that is built into the program, so that it trains on something real without any file.
//!
//! The images are in the order of their writers; holding out the last fifth holds out writers whom the training
//! part has never seen.

use crate::csv::{self, CsvOptions};
use crate::rows::{Recipe, assemble};
use crate::{Augment, DataError, HeldOut, Normalise, Opened, ValSplit};
use flate2::read::GzDecoder;
use std::io::BufReader;
use std::path::Path;

/// Where the built-in digits come from.
pub const DIGITS_ATTRIBUTION: &str = "Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, 1998, \
     UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0; its test part, as scikit-learn ships it";

const PACKED: &[u8] = include_bytes!("digits.csv.gz");
const HELD_OUT: ValSplit = ValSplit { fraction: 0.2, held_out: HeldOut::Last };

/// How the digits are used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DigitsOptions {
    /// Variations of the training images; a shift by one pixel helps most.
    pub augment: Augment,
    /// Scaling of the pixels (0 to 16).
    pub normalise: Normalise,
}

pub(crate) fn open(options: &DigitsOptions) -> Result<Opened, DataError> {
    let file = Path::new("digits.csv.gz (built in)");
    let format = CsvOptions { header: Some(false), shape: Some(vec![1, 8, 8]), ..CsvOptions::new(file) };
    let (table, class_names) = csv::read_one(BufReader::new(GzDecoder::new(PACKED)), &format)?;
    let recipe = Recipe {
        classes: Some(10),
        split: HELD_OUT,
        normalise: options.normalise,
        augment: options.augment,
        class_names,
        ..Recipe::default()
    };
    let opened = assemble(table, None, recipe)?;
    Ok(Opened { attribution: Some(DIGITS_ATTRIBUTION), ..opened })
}
