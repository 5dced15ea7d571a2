//! Bindings to NCCL, and to RCCL, which has the same names: C types, constants, and a table of functions found at run
//! time.
//!
//! Nothing is linked. [`NcclLib`] opens a library by its path and looks every function up by its name; one that the
//! library lacks is an `Err` in its field, and calling it anyway panics. So a caller asks for the symbol and never
//! compares versions. Enums are numbers with names, because a newer library may return a number that this header lacks.
//!
//! The bindings are made by `recipe.rs` from `include/nccl.h` and are committed; a test makes them anew and compares.
//! This crate does not know communicators, ranks or devices: `dtrain-nccl` makes something safe of it.

mod config;
mod host_stream;

// Included, not a module: so that rustfmt leaves the generated text alone.
#[allow(non_camel_case_types, non_snake_case, non_upper_case_globals, missing_docs)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, rustdoc::all)]
mod bindings {
    #[cfg(not(feature = "buildtime-bindgen"))]
    include!("bindings.rs");
    #[cfg(feature = "buildtime-bindgen")]
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;
pub use config::UNDEFINED;
pub use host_stream::HostStream;
