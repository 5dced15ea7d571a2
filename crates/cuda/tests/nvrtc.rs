//! Every kernel compiles to machine code for real GPUs, by NVRTC, where there is no GPU.
//!
//! `crates/cuda/fetch-nvrtc.sh` fetches the compiler. Without it these tests say so and pass. To see what each kernel
//! takes: `cargo test -p dtrain-cuda --test nvrtc -- --nocapture`.

use dtrain_cuda::kernels::{FILES, KERNELS};
use dtrain_cuda::nvrtc::{Nvrtc, NvrtcError, Resources};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Ampere, Hopper, Blackwell.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_100"];

/// The compiler, if it is there.
fn nvrtc() -> Option<Nvrtc> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .unwrap_or_default();
    let path = std::env::var_os("DTRAIN_NVRTC")
        .map_or_else(|| cache.join("dtrain/nvrtc/libnvrtc.so.13"), PathBuf::from);
    if !path.exists() {
        println!("skipped: no NVRTC at {}; crates/cuda/fetch-nvrtc.sh fetches it", path.display());
        return None;
    }
    Some(Nvrtc::load(&path).expect("a file that is there is an NVRTC"))
}

/// What every kernel takes on one architecture.
fn compiled(nvrtc: &Nvrtc, architecture: &str) -> BTreeMap<String, Resources> {
    let mut all = BTreeMap::new();
    for file in FILES {
        let cubin =
            nvrtc.compile(file.name, &file.source(), architecture).unwrap_or_else(|error| panic!("{error}"));
        assert!(cubin.bytes.starts_with(b"\x7fELF"), "{} for {architecture} is no CUBIN", file.name);
        assert!(!cubin.log.contains("warning"), "{} for {architecture}: {}", file.name, cubin.log);
        all.extend(cubin.resources().into_iter().map(|found| (found.kernel.clone(), found)));
    }
    all
}

#[test]
fn every_kernel_compiles_for_every_architecture_and_stays_in_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    let tables = std::thread::scope(|scope| {
        let nvrtc = &nvrtc;
        let compile = |architecture| scope.spawn(move || compiled(nvrtc, architecture));
        ARCHITECTURES.map(compile).map(|thread| thread.join().expect("the messages are above"))
    });
    let (major, minor) = nvrtc.version();
    println!("NVRTC {major}.{minor}; registers a thread, bytes of spills, bytes of shared memory a block");
    println!("{:28} {}", "kernel", ARCHITECTURES.map(|name| format!("{name:>18}")).join(""));
    for kernel in KERNELS {
        let found = tables.each_ref().map(|table| {
            table.get(kernel.name).unwrap_or_else(|| panic!("{} was not compiled everywhere", kernel.name))
        });
        let columns = found.map(|r| format!("{:>6}{:>5}{:>7}", r.registers, r.spilled, r.shared));
        println!("{:28} {}", kernel.name, columns.concat());
        for (found, architecture) in found.iter().zip(ARCHITECTURES) {
            let most = 65_536 / kernel.threads;
            assert!((1..=most).contains(&found.registers), "{} for {architecture}: {found:?}", kernel.name);
            // A few words spill where the compiler wants all threads of a multiprocessor at once.
            assert!(found.spilled <= 64, "{} for {architecture} spills: {found:?}", kernel.name);
        }
    }
    assert!(
        tables.iter().all(|table| table.len() == KERNELS.len()),
        "there are kernels that are in no table"
    );
}

#[test]
fn a_source_always_gives_the_same_machine_code() {
    let Some(nvrtc) = nvrtc() else { return };
    let file = FILES.iter().find(|file| file.name == "conv.cu").expect("it is there");
    let compile = || nvrtc.compile(file.name, &file.source(), "sm_90a").expect("it compiles").bytes;
    assert!(compile() == compile(), "two compilations differ");
}

#[test]
fn a_kernel_that_is_wrong_is_refused_with_its_file_and_line() {
    let Some(nvrtc) = nvrtc() else { return };
    let source = FILES[0].source().replace("y[i] = value", "y[i] = nothing");
    let error =
        nvrtc.compile(FILES[0].name, &source, "sm_90a").expect_err("nothing is not there").to_string();
    assert!(error.contains("fill.cu(7)") && error.contains("nothing"), "{error}");
}

#[test]
fn a_missing_compiler_is_an_error_and_not_a_crash() {
    let error = Nvrtc::load(Path::new("/nowhere/libnvrtc.so.13")).err().expect("nothing is there");
    assert!(matches!(error, NvrtcError::Load { .. }) && error.to_string().contains("/nowhere"), "{error}");
}
