//! Tests of the whole program, all in one binary: it is linked once, and what one test waits for is another's time to compute.
//!
//! `cargo test --test all same_bits` runs those of one file. Those that need a process of their own, or nothing of the program, are
//! binaries apart: `allocation.rs` counts every allocation, `architecture.rs` reads the sources.

mod clips;
mod harness;

mod amd_gpus;
mod audit;
mod bad_network;
mod cli_bench;
mod cli_command;
mod cli_config;
mod cli_config_resumed;
mod cli_doctor;
mod cli_drill;
mod cli_help;
mod cli_launch;
mod cli_run;
mod cuda;
mod docs_current;
mod early_stopping;
mod elastic;
mod export;
mod gpt2;
mod gpu_pack;
mod gpu_script;
mod gpu_verdicts;
mod groups;
mod hosts;
mod hosts_joining;
mod images;
mod json_contract;
mod kubernetes;
mod libraries;
mod models;
mod nccl;
mod nccl_on_gpus;
mod optimizer;
mod parquet_tables;
mod power;
mod processes;
mod profile;
mod recovery;
mod same_bits;
mod sharded;
mod sharded_gpus;
mod shards;
mod shown_runs;
mod slurm;
mod standstill;
mod status;
mod succession;
mod supervisor_dies;
mod tables;
mod tokenize;
mod tracking;
mod transcript;
mod use_model;
mod use_model_arrays;
mod use_model_errors;
mod use_model_texts;
mod use_model_writing;
mod validation;
mod watching;
mod while_running;
mod windows;
