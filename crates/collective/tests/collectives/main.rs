//! The collectives as pure machines, over a network of the test's own.

mod frames;
mod matrix;
mod network;
mod offers;
mod ring_sum;
mod rounding;
