//! Compiles every kernel for one architecture with the NVRTC that is given, and prints what each takes of a GPU.
//!
//! ```text
//! cargo run -p dtrain-cuda --example compile_kernels -- /usr/local/cuda/lib64/libnvrtc.so.13 sm_90a [FOLDER]
//! ```
//!
//! What was compiled of a file is kept in the folder, for `bench/instructions.py`. It needs no GPU. A kernel that does not
//! compile is told with the compiler's messages, the others are compiled all the same, and the exit code is 1.

use dtrain_cuda::kernels::FILES;
use dtrain_cuda::nvrtc::{Nvrtc, Resources};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (library, architecture, folder) = match arguments.as_slice() {
        [library, architecture] => (library, architecture, None),
        [library, architecture, folder] => (library, architecture, Some(Path::new(folder))),
        _ => {
            eprintln!(
                "error: two arguments are needed: the path of NVRTC, and an architecture such as sm_90a; a folder may follow"
            );
            return ExitCode::from(2);
        }
    };
    let nvrtc = match Nvrtc::load(Path::new(library)) {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let begun = Instant::now();
    let mut found: Vec<Resources> = Vec::new();
    let mut refused = Vec::new();
    for file in FILES {
        match nvrtc.compile(file.name, &file.source(), architecture) {
            Ok(cubin) => {
                let resources = cubin.resources();
                if let (Some(folder), Some(first)) = (folder, resources.first()) {
                    let path = folder.join(format!("{}.cubin", first.kernel));
                    let kept =
                        std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, &cubin.bytes));
                    if let Err(error) = kept {
                        eprintln!("error: {}: {error}", path.display());
                        return ExitCode::FAILURE;
                    }
                }
                found.extend(resources);
            }
            Err(error) => {
                println!("{error}");
                refused.push(file.name);
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{:32}{:>10}{:>8}{:>8}", "kernel", "registers", "spilled", "shared");
    for Resources { kernel, registers, spilled, shared } in &found {
        println!("{kernel:32}{registers:>10}{spilled:>8}{shared:>8}");
    }
    let (major, minor) = nvrtc.version();
    let most = found.iter().map(|one| one.registers).max().unwrap_or(0);
    let spilling: Vec<&Resources> = found.iter().filter(|one| one.spilled > 0).collect();
    let bytes: u32 = spilling.iter().map(|one| one.spilled).sum();
    println!(
        "NVRTC {major}.{minor}, {architecture}: {} kernels in {seconds:.1} s, at most {most} registers, {} spill ({bytes} bytes)",
        found.len(),
        spilling.len(),
    );
    if refused.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("not compiled: {}", refused.join(", "));
    ExitCode::FAILURE
}
