//! How recordings are cut: a part of what every checkpoint knows.

use serde::{Deserialize, Serialize};

/// How recordings are cut.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowForm {
    /// Rows of a window.
    pub length: usize,
    /// Rows from the first of a window to the first of the next.
    pub stride: usize,
    /// The longest time between two rows that belong together. *Units*: those of the time column, seconds of dates.
    pub gap: Option<f64>,
}
