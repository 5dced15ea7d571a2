//! Finds NVIDIA's libraries on this machine, opens them, and asks each for its version.
//!
//! There is no one place for them: a driver comes with the system, NVRTC and NCCL with a toolkit, a container or a
//! Python environment, and often with several of these at once. Whoever loads such a library by its bare name gets
//! whichever the dynamic linker meets first. So [`Finder::find`] looks at every place in one fixed order, opens the
//! first library there that works by its full path, and keeps it open: who asks for it by its bare name later (cudarc,
//! a library that needs it) is given this one. What was found, or why nothing was, is plain data.
//!
//! ```
//! use dtrain_locate::{Environment, Finder, Library, Version};
//!
//! let finder = Finder::new(Environment::here());
//! let finding = finder.find(Library::Nccl, Some(&Version::new(&[2, 14])));
//! match &finding.found {
//!     Some(found) => println!("NCCL {} is open: {}", found.version, found.path.display()),
//!     None => println!("no NCCL: {}", finding.sentence()),
//! }
//! ```
//! Beside that it reads `CUDA_VISIBLE_DEVICES`. It does not know what the libraries are for, and it prints nothing. It starts no process and runs no Python: where
//! packages are follows from where the interpreter stands.

mod cache;
mod candidate;
mod elf;
mod environment;
mod find;
mod library;
mod open;
mod place;
mod version;
mod visible;

pub use environment::Environment;
pub use find::{Finder, Finding, Found, Refused};
pub use library::Library;
pub use open::Refusal;
pub use place::{Origin, Place, places};
pub use version::Version;
pub use visible::{Visible, VisibleDevice, visible};
