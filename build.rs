//! Embeds the git revision in the binary, and nothing else.
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=.git/HEAD");
    println!("cargo:rerun-if-changed=.git/logs/HEAD");
    // A clean revision must not outlive the first edit, nor a dirty one the last.
    for place in ["build.rs", "Cargo.toml", "Cargo.lock", "crates", "nccl-sys", "simulations"] {
        println!("cargo:rerun-if-changed={place}");
    }
    let revision = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map_or_else(|| "unknown".to_owned(), |text| text.trim().to_owned());
    println!("cargo:rustc-env=DTRAIN_REVISION={revision}");
}
