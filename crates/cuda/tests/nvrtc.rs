//! Every kernel compiles to machine code for real GPUs, by NVRTC, where there is no GPU.
//!
//! `crates/cuda/fetch-nvrtc.sh` fetches the compilers. Without them these tests say so and pass. To see what each kernel
//! takes: `cargo test -p dtrain-cuda --test nvrtc -- --nocapture`. `DTRAIN_NVRTC_ARCHITECTURES=sm_90a` compiles for fewer GPUs,
//! `DTRAIN_NVRTC_FILES=2/3` the second third of the files, for those who come back often.

mod share;

use dtrain_cuda::kernels::{FILES, KERNELS};
use dtrain_cuda::nvrtc::{Nvrtc, NvrtcError, Resources};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Ampere, Hopper, Blackwell.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_100"];

/// Those that are asked for, or all.
fn architectures() -> Vec<&'static str> {
    let Ok(asked) = std::env::var("DTRAIN_NVRTC_ARCHITECTURES") else { return ARCHITECTURES.to_vec() };
    let known = |name: &str| ARCHITECTURES.into_iter().find(|known| *known == name);
    asked
        .split(',')
        .map(|name| known(name).unwrap_or_else(|| panic!("{name}: not of {ARCHITECTURES:?}")))
        .collect()
}

/// Which share of the files is compiled, and of how many.
fn files() -> (usize, usize) {
    share::asked("DTRAIN_NVRTC_FILES")
}

/// Bytes that a kernel may spill, stores and loads together: a few words where the compiler wants all threads of a
/// multiprocessor at once, and in the gradient of keys of heads of 128, which fills all 255 registers with its results (128),
/// its own keys and values (64) and a tile's products (16).
const MOST_SPILLED: u32 = 64;

/// Where `fetch-nvrtc.sh` puts what it fetches.
fn fetched(name: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .unwrap_or_default();
    cache.join("dtrain/nvrtc").join(name)
}

/// The compiler, if it is there.
fn nvrtc() -> Option<Nvrtc> {
    loaded(std::env::var_os("DTRAIN_NVRTC").map_or_else(|| fetched("libnvrtc.so.13"), PathBuf::from))
}

fn loaded(path: PathBuf) -> Option<Nvrtc> {
    if !path.exists() {
        println!("skipped: no NVRTC at {}; crates/cuda/fetch-nvrtc.sh fetches it", path.display());
        return None;
    }
    Some(Nvrtc::load(&path).expect("a file that is there is an NVRTC"))
}

/// What every kernel takes on one architecture: two files are compiled at a time.
fn compiled(nvrtc: &Nvrtc, architecture: &str) -> BTreeMap<String, Resources> {
    std::thread::scope(|scope| {
        let half = |from: usize| scope.spawn(move || compiled_from(nvrtc, architecture, from));
        let halves = [half(0), half(1)];
        halves.into_iter().flat_map(|half| half.join().expect("the messages are above")).collect()
    })
}

/// Of every second file that is asked for, from this one on.
fn compiled_from(nvrtc: &Nvrtc, architecture: &str, from: usize) -> BTreeMap<String, Resources> {
    let (mut all, (one, of)) = (BTreeMap::new(), files());
    for file in FILES.iter().skip(one - 1).step_by(of).skip(from).step_by(2) {
        let cubin =
            nvrtc.compile(file.name, &file.source(), architecture).unwrap_or_else(|error| panic!("{error}"));
        assert!(cubin.bytes.starts_with(b"\x7fELF"), "{} for {architecture} is no CUBIN", file.name);
        assert!(!cubin.log.contains("warning"), "{} for {architecture}: {}", file.name, cubin.log);
        all.extend(cubin.resources().into_iter().map(|found| (found.kernel.clone(), found)));
    }
    all
}

/// A newer compiler takes more than an older one: the front of the oldest has to take every file.
#[test]
fn the_oldest_compiler_that_is_taken_takes_every_kernel() {
    let Some(nvrtc) = loaded(fetched("oldest/libnvrtc.so.12")) else { return };
    assert_eq!(nvrtc.version(), (12, 0), "the oldest that `dtrain doctor` names");
    for file in FILES {
        nvrtc.accepts(file.name, &file.source()).unwrap_or_else(|error| panic!("{error}"));
    }
    let newer = "extern \"C\" __global__ void f(float* y) { auto g = [&](auto v) { y[0] = v; }; g(1); }\n";
    let refused = nvrtc.accepts("newer.cu", newer).expect_err("NVRTC 13.5 takes it");
    assert!(refused.to_string().contains("execution space"), "{refused}");
}

#[test]
fn every_kernel_compiles_for_every_architecture_and_stays_in_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    let (names, begun) = (architectures(), std::time::Instant::now());
    let tables: Vec<_> = std::thread::scope(|scope| {
        let nvrtc = &nvrtc;
        let threads: Vec<_> = names.iter().map(|name| scope.spawn(move || compiled(nvrtc, name))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the messages are above")).collect()
    });
    println!("{} kernels for {names:?} in {:.1?}", tables[0].len(), begun.elapsed());
    let (major, minor) = nvrtc.version();
    println!("NVRTC {major}.{minor}; registers a thread, bytes of spills, bytes of shared memory a block");
    println!("{:28} {}", "kernel", names.iter().map(|name| format!("{name:>18}")).collect::<String>());
    let whole = files() == (1, 1);
    for kernel in KERNELS {
        if !whole && tables.iter().all(|table| !table.contains_key(kernel.name)) {
            continue;
        }
        let found: Vec<&Resources> = tables
            .iter()
            .map(|table| {
                let here = table.get(kernel.name);
                here.unwrap_or_else(|| panic!("{} was not compiled everywhere", kernel.name))
            })
            .collect();
        let columns = found.iter().map(|r| format!("{:>6}{:>5}{:>7}", r.registers, r.spilled, r.shared));
        println!("{:28} {}", kernel.name, columns.collect::<String>());
        for (found, architecture) in found.iter().zip(&names) {
            let most = 65_536 / kernel.threads;
            assert!((1..=most).contains(&found.registers), "{} for {architecture}: {found:?}", kernel.name);
            let fits = found.spilled <= MOST_SPILLED;
            assert!(fits, "{} for {architecture} spills: {found:?}", kernel.name);
        }
    }
    let known = |name: &String| KERNELS.iter().any(|kernel| kernel.name == name);
    for table in &tables {
        assert!(table.keys().all(known) && !table.is_empty(), "there are kernels that are in no table");
        assert!(!whole || table.len() == KERNELS.len(), "a kernel is there twice");
    }
}

#[test]
fn a_source_always_gives_the_same_machine_code() {
    let Some(nvrtc) = nvrtc() else { return };
    let file = FILES.iter().find(|file| file.name == "conv2d.cu").expect("it is there");
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
