//! Real backends, between threads and between processes.

mod aborts;
mod arenas;
mod hierarchical;
mod hosts;
mod processes;
mod rounding;
mod survivors;
mod threads;
