//! The collectives as pure machines, over a network of the test's own.

mod frames;
mod matrix;
mod network;
mod plain;
