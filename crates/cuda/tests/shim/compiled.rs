//! How kernels are compiled for the stand-in for a GPU, and where what came of it is kept: hundreds of tests run the same kernels.
//!
//! The bits are the same whatever the options, since none of them lets the compiler change the order of a sum or fuse what is not
//! fused in the text.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// For a C++ compiler, before the names of files.
pub fn flags() -> Vec<&'static str> {
    let mut flags = vec!["-std=c++17", "-O2", "-ffp-contract=off", "-fno-strict-aliasing"];
    flags.extend(["-U_FORTIFY_SOURCE", "-w", "-shared", "-fPIC"]);
    // A fused multiply-add as one instruction, where the processor has it: the same bits as the call of a function that it is
    // otherwise.
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") {
        flags.push("-mfma");
    }
    flags
}

/// Where a library lies that was built of these texts, by this compiler; or where it is to lie. It is beside what cargo builds;
/// none where this process is not one of cargo's.
pub fn kept(compiler: &str, texts: &[&str]) -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    let target = exe.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file())?;
    let mut hasher = DefaultHasher::new();
    (compiler, flags(), texts).hash(&mut hasher);
    let folder = target.join("stand-in");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join(format!("{:016x}.so", hasher.finish())))
}

/// Whoever wants the same library meanwhile *blocks* here until this is dropped, and finds it then: in an empty folder the first tests
/// want the same forty, and each of them would build them all. `None` where files cannot be locked.
pub fn building(kept: &Path) -> Option<File> {
    let file = File::create(kept.with_extension("lock")).ok()?;
    file.lock().ok()?;
    Some(file)
}

/// Keeps a library, whole or not at all: another process may look for it now.
pub fn keep(kept: &Path, built: &Path) {
    let own = kept.with_extension(std::process::id().to_string());
    let _not_kept = std::fs::copy(built, &own).and_then(|_| std::fs::rename(&own, kept));
}
