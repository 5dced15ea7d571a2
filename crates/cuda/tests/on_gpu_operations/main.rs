//! Every operation of the engine on a GPU, where there is one: right on awkward and on real sizes, the same bits again and
//! beside a busy stream, and whole models that train to the same digest twice.
//!
//! A program to be carried to a machine with a GPU (docs/design/HACKING.md). Here it runs on the fake driver, with small sizes.

#[path = "../on_gpu/machine.rs"]
mod machine;
#[path = "../on_gpu/support.rs"]
mod support;

#[path = "../fake_driver/operations.rs"]
mod operations;
#[path = "../fake_driver/rig.rs"]
mod rig;
#[path = "../stand_in/mod.rs"]
mod stand_in;
#[path = "../fake_driver/training.rs"]
mod training;

mod again;
mod checks;
mod models;
mod precision;
mod real_sizes;

#[test]
fn operations_by_themselves_run_to_their_end_on_the_fake_driver() {
    support::runs_on_the_fake(&["checks::"]);
}

#[test]
fn all_else_runs_to_its_end_on_the_fake_driver() {
    support::runs_on_the_fake(&["--skip", "checks::"]);
}
