//! The library as any program sees it: opened by its path, called through cudarc's bindings, which find it by its name.

mod caller;
mod convolutions;
mod graphs;
mod refusals;
