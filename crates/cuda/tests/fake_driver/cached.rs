//! Kernels that are kept on the disk.

use crate::stand_in::build::compiler;
use crate::support::{Fake, cache, child, driver, gpu, is_child, nvrtc};
use dtrain_cuda::driver::{Gpu, KernelCache, Loaded};
use dtrain_cuda::kernels::FILES;
use std::fs;
use std::path::{Path, PathBuf};

fn load(cache: &KernelCache) -> Loaded {
    Gpu::open(&driver(), 1, &nvrtc(), cache).unwrap_or_else(|error| panic!("{error}")).1
}

/// A copy of the cache that the other tests share, so that nothing has to be compiled here.
fn copied() -> (tempfile::TempDir, Vec<PathBuf>) {
    let _filled = gpu();
    let folder = tempfile::tempdir().expect("a folder");
    load(&cache());
    let shared = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fake-cuda-kernels");
    for entry in fs::read_dir(shared).expect("the cache").map(|entry| entry.expect("an entry").path()) {
        let name = entry.file_name().expect("a name");
        // Another process may be at a draft.
        if !name.to_string_lossy().starts_with('.') {
            fs::copy(&entry, folder.path().join(name)).expect("a copy");
        }
    }
    let files = fs::read_dir(folder.path()).expect("the copy").map(|entry| entry.expect("an entry").path());
    let files = files.collect();
    (folder, files)
}

#[test]
fn what_was_compiled_once_is_loaded_and_what_is_damaged_is_compiled_again() {
    if compiler().is_none() {
        return;
    }
    let (folder, files) = copied();
    let cache = KernelCache::at(folder.path());
    let whole = Loaded { compiled: 0, cached: FILES.len(), not_kept: None };
    assert_eq!(load(&cache), whole);
    // Files of older sources may lie there too; one that is in use is damaged.
    let mut damaged = 0;
    for file in files {
        let before = fs::read(&file).expect("machine code");
        let mut bytes = before.clone();
        bytes[before.len() / 2] ^= 1;
        fs::write(&file, bytes).expect("a file of ours");
        damaged = load(&cache).compiled;
        if damaged == 1 {
            assert_eq!(fs::read(&file).expect("machine code").len(), before.len());
            break;
        }
    }
    assert_eq!(damaged, 1, "no damage was noticed");
    assert_eq!(load(&cache), whole, "it was written anew");
}

#[test]
fn a_cache_that_cannot_be_written_is_told_and_no_error() {
    if compiler().is_none() {
        return;
    }
    let (folder, files) = copied();
    let blocked = folder.path().join("file");
    fs::write(&blocked, "").expect("a file");
    assert!(files.len() >= FILES.len());
    let loaded = load(&KernelCache::at(&blocked));
    assert_eq!(loaded.compiled, FILES.len());
    assert!(loaded.not_kept.expect("a reason").contains("file: "));
}

/// What the child of the next test does.
#[test]
fn compile_for_another_architecture() {
    if is_child() {
        let (before, folder) =
            (Fake::new().calls("nvrtcCompileProgram"), tempfile::tempdir().expect("a folder"));
        let error = Gpu::open(&driver(), 0, &nvrtc(), &KernelCache::at(folder.path())).unwrap_err();
        println!("\nafter {before} said {}", error.to_string().replace('\n', " "));
    }
}

#[test]
fn a_compiler_that_fails_is_an_error_with_its_words() {
    let said =
        child("cached::compile_for_another_architecture", &[("FAKE_CUDA_FAIL", "nvrtcCompileProgram:1:11")]);
    assert!(
        said.contains("nvrtcCompileProgram") && said.contains("for sm_90a returned 11: asked to fail"),
        "{said}"
    );
    assert!(said.contains("hint: NVRTC"), "{said}");
}
