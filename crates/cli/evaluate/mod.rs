//! How good a trained model is: figures of its predictions beside what is true, and how they are shown.
//!
//! `classes.rs` and `values.rs` add up sample by sample, in the order of the samples, so that no bit depends on who
//! predicted them; `files.rs` writes tables and pictures. It does not know where predictions come from.

mod classes;
mod files;
mod values;

pub use classes::ClassFigures;
pub use files::{classes_csv, confusion_csv, confusion_svg};
pub use values::{ValueFigures, ValueRow};
