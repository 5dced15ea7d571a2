//! dtrain as a library: what the binary is made of.
//!
//! The crates below know their part and nothing of each other; this one reads the configuration, picks the parts
//! and reports to people. Only `main` prints errors and chooses exit codes.

pub mod config;
