//! dtrain as a library: what the binary is made of.
//!
//! The crates below know their part and nothing of each other; this one reads the configuration, picks the parts
//! ([`plan`]) and reports to people ([`report`]). Only `main` prints errors and chooses exit codes.

#[cfg(not(target_os = "linux"))]
compile_error!("dtrain runs on Linux: it needs memfd, pidfd and futexes");

#[macro_use]
mod say;

pub mod arguments;
mod bench_collectives;
mod bench_data;
mod bench_gpu_plan;
mod bench_scaling;
mod bench_step;
mod blueprint;
pub mod commands;
mod conclude;
pub mod config;
mod csv_field;
mod doctor;
mod drill;
mod early_signals;
mod error;
mod evaluate;
mod export;
mod external;
mod fabric;
#[cfg(test)]
#[path = "../../tests/harness/fake_libraries.rs"]
#[allow(dead_code)]
mod fake_libraries;
mod frozen_parameters;
mod generate;
mod gpt2_names;
pub mod gpus;
mod hosts;
mod id_files;
mod kept;
mod leader;
mod llama_names;
pub mod log;
mod mesh_address;
pub mod nccl;
mod node_process;
mod own;
pub mod plan;
pub mod predict;
mod random;
mod rank_profile;
mod rank_setup;
mod recipe;
pub mod report;
pub mod request;
pub mod run_folder;
mod run_tokenizer;
mod serde_path;
pub mod serving;
pub mod session;
mod slurm;
mod status;
mod tokens;
mod trained;
mod trainer;
mod unusable;
pub mod watch;
mod way_on;
mod whole_file;

pub use error::{CliError, Kind};
pub use external::{
    Agreement, Brought, BuiltFor, ExternalParts, ExternalProgram, ExternalSetup, Purpose, StatePlace, Updates,
};
pub use own::Own;
pub use trained::export_parameters;
pub use trainer::{train_external, train_own};

pub use dtrain_cuda::CudaDevice;
pub use dtrain_data as data;
pub use dtrain_engine as engine;
pub use dtrain_engine::check_gradients;
pub use dtrain_runtime as runtime;
pub use dtrain_types as types;
